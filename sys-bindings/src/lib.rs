//! Raw bindings to the FreeBSD kernel. Used by `kpi` and by nobody else.
//!
//! Nothing in here is written by hand, apart from the assertions below: what clang knows of a type
//! that Rust embeds is what the Rust compiler made of it. `kpi/c/layout.c` asserts that the C half
//! was compiled with the same layouts.

#![no_std]
#![allow(missing_docs, unreachable_pub, unnecessary_transmutes, unsafe_op_in_unsafe_fn)]
#![allow(non_camel_case_types, non_snake_case, non_upper_case_globals)]
#![allow(clippy::all, clippy::undocumented_unsafe_blocks, rustdoc::all)]

include!(concat!(env!("OUT_DIR"), "/bindings.rs"));

/// Asserts size and alignment of a type whose numbers `kpi/c/layout.h` has.
macro_rules! assert_layout {
    ($($type:ident: $size:ident, $align:ident;)*) => {$(
        const _: () = assert!(size_of::<$type>() == kpi_layout::$size as usize);
        const _: () = assert!(align_of::<$type>() == kpi_layout::$align as usize);
    )*};
}

assert_layout! {
    epoch_tracker: KPI_SIZEOF_EPOCH_TRACKER, KPI_ALIGNOF_EPOCH_TRACKER;
    lagg_reqall: KPI_SIZEOF_LAGG_REQALL, KPI_ALIGNOF_LAGG_REQALL;
    lagg_reqflags: KPI_SIZEOF_LAGG_REQFLAGS, KPI_ALIGNOF_LAGG_REQFLAGS;
    lagg_reqopts: KPI_SIZEOF_LAGG_REQOPTS, KPI_ALIGNOF_LAGG_REQOPTS;
    lagg_reqport: KPI_SIZEOF_LAGG_REQPORT, KPI_ALIGNOF_LAGG_REQPORT;
}
