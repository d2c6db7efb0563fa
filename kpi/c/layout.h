/*
 * Sizes and alignments of the kernel's types that Rust embeds. bindgen turns
 * them into constants, which sys-bindings compares with what the Rust compiler
 * made of the bindings, and layout.c with what the C compiler makes of the
 * headers.
 */
#ifndef _KPI_LAYOUT_H_
#define	_KPI_LAYOUT_H_

#define	KPI_LAYOUT_OF(NAME, TYPE)					\
	KPI_SIZEOF_##NAME = sizeof(TYPE),				\
	KPI_ALIGNOF_##NAME = _Alignof(TYPE)

enum kpi_layout {
	KPI_LAYOUT_OF(EPOCH_TRACKER, struct epoch_tracker),
	KPI_LAYOUT_OF(LAGG_REQALL, struct lagg_reqall),
	KPI_LAYOUT_OF(LAGG_REQFLAGS, struct lagg_reqflags),
	KPI_LAYOUT_OF(LAGG_REQOPTS, struct lagg_reqopts),
	KPI_LAYOUT_OF(LAGG_REQPORT, struct lagg_reqport),
};

#endif
