/*
 * Starts a FreeBSD/amd64 kernel in QEMU without a loader and without a disk.
 *
 * QEMU loads this program by the multiboot protocol. Its first module is the kernel as an ELF file,
 * followed in the module's string by the variables of the kernel's environment; a module whose name
 * ends in .ko is a kernel module, every other one is an image of the root file system. The stub
 * copies the kernel's segments to where they are linked, describes all of it in the metadata that
 * loader(8) would have written (see sys/linker.h of FreeBSD; addresses in it are physical, the
 * kernel relocates them), maps the first GiB of memory at every GiB of address space, so also where
 * the kernel is linked, and jumps.
 *
 * Whatever is not as expected ends the machine with a line on the serial port.
 */

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define MULTIBOOT_LOADED 0x2badb002
#define MULTIBOOT_HAS_MODULES (1u << 3)
#define MULTIBOOT_HAS_MEMORY_MAP (1u << 6)

#define GIB 0x40000000u
#define PAGE_2M 0x200000u
/* Where FreeBSD's kernel starts in memory. */
#define KERNEL_START 0x200000u
/* As in stub.ld. */
#define STUB_BASE 0x8000000u

#define ELF_PT_LOAD 1
#define ELF_SHT_SYMTAB 2
#define ELF_MACHINE_X86_64 62

/* Records of the metadata; those of the second group describe the kernel only. */
#define MODINFO_END 0
#define MODINFO_NAME 1
#define MODINFO_TYPE 2
#define MODINFO_ADDR 3
#define MODINFO_SIZE 4
#define MODINFO_SYMBOLS_START 0x8003
#define MODINFO_SYMBOLS_END 0x8004
#define MODINFO_ENVIRONMENT 0x8006
#define MODINFO_HOWTO 0x8007
#define MODINFO_KERNEL_END 0x8008
#define MODINFO_SMAP 0x9001
#define MODINFO_MODULEP 0x9006

/* The console is the serial port. */
#define RB_SERIAL 0x1000

#define PAGE_PRESENT_WRITABLE 0x3
#define PAGE_LARGE 0x80
#define TABLE_ENTRIES 512

#define SMAP_ENTRY_LEN 20
#define SMAP_ENTRIES_MAX 32

struct multiboot_info {
	u32 flags, mem_lower, mem_upper, boot_device, command_line;
	u32 modules_count, modules_addr;
	u32 symbols[4];
	u32 memory_map_len, memory_map_addr;
};

struct multiboot_module {
	u32 start, end, string, reserved;
};

struct elf_header {
	u8 ident[16];
	u16 type, machine;
	u32 version;
	u64 entry, program_headers, section_headers;
	u32 flags;
	u16 header_len, program_header_len, program_headers_count;
	u16 section_header_len, section_headers_count, names_index;
};

struct elf_segment {
	u32 type, flags;
	u64 offset, virtual_addr, physical_addr, file_len, memory_len, align;
};

struct elf_section {
	u32 name, type;
	u64 flags, addr, offset, len;
	u32 link, info;
	u64 align, entry_len;
};

void enter_kernel(u32 cr3, u32 modulep, u32 kernend, u32 entry_low, u32 entry_high);
void stub_main(u32 magic, const struct multiboot_info *info);

static u64 pml4[TABLE_ENTRIES] __attribute__((aligned(4096)));
static u64 pdp[TABLE_ENTRIES] __attribute__((aligned(4096)));
static u64 pd[TABLE_ENTRIES] __attribute__((aligned(4096)));
static u8 metadata[65536] __attribute__((aligned(4096)));
static u32 metadata_len;
static char environment[8192];

static void
out(u16 port, u8 value)
{
	__asm__ volatile("outb %0, %1" : : "a"(value), "Nd"(port));
}

static void
print(const char *text)
{
	while (*text != '\0')
		out(0x3f8, (u8)*text++);
}

/* Resets the machine by the keyboard controller, which ends a QEMU started with -no-reboot. */
static void
require(int condition, const char *what)
{
	if (condition)
		return;
	print("stub: ");
	print(what);
	print("\r\n");
	for (;;) {
		out(0x64, 0xfe);
		__asm__ volatile("hlt");
	}
}

static void
copy(void *to, const void *from, u32 len)
{
	u8 *t = to;
	const u8 *f = from;

	while (len-- > 0)
		*t++ = *f++;
}

static void
zero(void *to, u32 len)
{
	u8 *t = to;

	while (len-- > 0)
		*t++ = 0;
}

static u32
text_len(const char *text)
{
	u32 len = 0;

	while (text[len] != '\0')
		len++;
	return (len);
}

static u32
round_up(u32 value, u32 to)
{
	return ((value + to - 1) & ~(to - 1));
}

static void
record(u32 type, u32 len, const void *data)
{
	u32 padded_len = round_up(len, 8);

	require(metadata_len + 8 + padded_len <= sizeof(metadata), "too much metadata");
	copy(metadata + metadata_len, &type, 4);
	copy(metadata + metadata_len + 4, &len, 4);
	copy(metadata + metadata_len + 8, data, len);
	metadata_len += 8 + padded_len;
}

static void
record_text(u32 type, const char *text)
{
	record(type, text_len(text) + 1, text);
}

static void
record_u64(u32 type, u64 value)
{
	record(type, 8, &value);
}

/* Whether a part of a file lies in the file. */
static int
is_inside(u64 offset, u64 len, u32 file_len)
{
	return (offset <= file_len && len <= file_len - offset);
}

/* Copies the segments; returns the address after the last. */
static u32
load_segments(const u8 *file, u32 file_len)
{
	const struct elf_header *elf = (const struct elf_header *)file;
	u32 end = 0;

	require(file_len >= sizeof(*elf), "the kernel is no ELF file");
	require(elf->ident[0] == 0x7f && elf->ident[1] == 'E' && elf->ident[2] == 'L' &&
	    elf->ident[3] == 'F', "the kernel is no ELF file (is it compressed?)");
	require(elf->machine == ELF_MACHINE_X86_64, "the kernel is not for amd64");
	require(is_inside(elf->program_headers,
	    (u64)elf->program_headers_count * sizeof(struct elf_segment), file_len),
	    "the kernel is cut off");
	for (u32 i = 0; i < elf->program_headers_count; i++) {
		const struct elf_segment *segment =
		    (const struct elf_segment *)(file + (u32)elf->program_headers) + i;
		u64 segment_end = segment->physical_addr + segment->memory_len;

		if (segment->type != ELF_PT_LOAD)
			continue;
		require(is_inside(segment->offset, segment->file_len, file_len) &&
		    segment->file_len <= segment->memory_len, "the kernel is cut off");
		require(segment->physical_addr >= KERNEL_START && segment_end <= STUB_BASE,
		    "the kernel does not fit below the stub");
		copy((void *)(u32)segment->physical_addr, file + (u32)segment->offset,
		    (u32)segment->file_len);
		zero((void *)(u32)(segment->physical_addr + segment->file_len),
		    (u32)(segment->memory_len - segment->file_len));
		if (segment_end > end)
			end = (u32)segment_end;
	}
	require(end != 0, "the kernel has nothing to load");
	return (end);
}

/* Puts the length of a section and the section at `to`; returns the address after it. */
static u32
load_table(const u8 *file, u32 file_len, const struct elf_section *section, u32 to)
{
	u64 len = section->len;

	require(is_inside(section->offset, len, file_len), "the kernel is cut off");
	require(to + 8 + len <= STUB_BASE, "the kernel's symbols do not fit below the stub");
	copy((void *)to, &len, 8);
	copy((void *)(to + 8), file + (u32)section->offset, (u32)len);
	return (round_up(to + 8 + (u32)len, 8));
}

/*
 * Puts the kernel's symbols behind it, for names in its backtraces; returns the address after them,
 * or `to` if the kernel is stripped.
 */
static u32
load_symbols(const u8 *file, u32 file_len, u32 to)
{
	const struct elf_header *elf = (const struct elf_header *)file;
	const struct elf_section *sections =
	    (const struct elf_section *)(file + (u32)elf->section_headers);

	require(is_inside(elf->section_headers,
	    (u64)elf->section_headers_count * sizeof(*sections), file_len), "the kernel is cut off");
	for (u32 i = 0; i < elf->section_headers_count; i++) {
		if (sections[i].type != ELF_SHT_SYMTAB)
			continue;
		require(sections[i].link < elf->section_headers_count, "the kernel's symbols are unnamed");
		to = load_table(file, file_len, &sections[i], to);
		return (load_table(file, file_len, &sections[sections[i].link], to));
	}
	return (to);
}

/* The words of a module's string after the first become variables, each ended by a zero. */
static void
load_environment(const char *string)
{
	u32 len = 0;

	while (*string != '\0' && *string != ' ')
		string++;
	while (*string != '\0') {
		while (*string == ' ')
			string++;
		while (*string != '\0' && *string != ' ') {
			require(len + 3 <= sizeof(environment), "too many variables");
			environment[len++] = *string++;
		}
		environment[len++] = '\0';
	}
	environment[len] = '\0';
}

static void
record_memory_map(const struct multiboot_info *info)
{
	u8 smap[SMAP_ENTRIES_MAX * SMAP_ENTRY_LEN];
	u32 len = 0;
	u32 at = info->memory_map_addr;

	while (at < info->memory_map_addr + info->memory_map_len) {
		u32 entry_len = *(const u32 *)at;

		require(len + SMAP_ENTRY_LEN <= sizeof(smap), "the memory map is too long");
		require(entry_len >= SMAP_ENTRY_LEN, "the memory map is broken");
		copy(smap + len, (const void *)(at + 4), SMAP_ENTRY_LEN);
		len += SMAP_ENTRY_LEN;
		at += 4 + entry_len;
	}
	record(MODINFO_SMAP, len, smap);
}

/* A module's record has the last part of its path as its name. */
static void
record_module(const struct multiboot_module *module)
{
	char name[64];
	u32 len = 0;

	for (const char *s = (const char *)module->string; *s != '\0' && *s != ' '; s++) {
		if (*s == '/') {
			len = 0;
			continue;
		}
		require(len + 1 < sizeof(name), "the name of a module is too long");
		name[len++] = *s;
	}
	name[len] = '\0';
	record_text(MODINFO_NAME, name);
	if (len > 3 && name[len - 3] == '.' && name[len - 2] == 'k' && name[len - 1] == 'o')
		record_text(MODINFO_TYPE, "elf obj module");
	else
		record_text(MODINFO_TYPE, "mfs_root");
	record_u64(MODINFO_ADDR, module->start);
	record_u64(MODINFO_SIZE, module->end - module->start);
}

void
stub_main(u32 magic, const struct multiboot_info *info)
{
	const struct multiboot_module *modules;
	const struct elf_header *elf;
	const u8 *file;
	u32 file_len, kernel_end, symbols_end, all_end, howto;

	require(magic == MULTIBOOT_LOADED, "not started by a multiboot loader");
	require((info->flags & MULTIBOOT_HAS_MODULES) != 0 && info->modules_count > 0,
	    "there is no kernel: give it as the first module");
	require((info->flags & MULTIBOOT_HAS_MEMORY_MAP) != 0, "there is no memory map");
	modules = (const struct multiboot_module *)info->modules_addr;
	file = (const u8 *)modules[0].start;
	file_len = modules[0].end - modules[0].start;
	elf = (const struct elf_header *)file;

	kernel_end = round_up(load_segments(file, file_len), 4096);
	symbols_end = load_symbols(file, file_len, kernel_end);
	load_environment((const char *)modules[0].string);
	all_end = symbols_end;
	for (u32 i = 0; i < info->modules_count; i++)
		if (modules[i].end > all_end)
			all_end = modules[i].end;
	require(all_end <= GIB - PAGE_2M, "the modules do not fit into a GiB");
	all_end = round_up(all_end, PAGE_2M);

	record_text(MODINFO_NAME, "kernel");
	record_text(MODINFO_TYPE, "elf kernel");
	record_u64(MODINFO_ADDR, KERNEL_START);
	record_u64(MODINFO_SIZE, symbols_end - KERNEL_START);
	if (symbols_end > kernel_end) {
		record_u64(MODINFO_SYMBOLS_START, kernel_end);
		record_u64(MODINFO_SYMBOLS_END, symbols_end);
	}
	record_u64(MODINFO_ENVIRONMENT, (u32)environment);
	howto = RB_SERIAL;
	record(MODINFO_HOWTO, 4, &howto);
	record_u64(MODINFO_KERNEL_END, all_end);
	record_u64(MODINFO_MODULEP, (u32)metadata);
	record_memory_map(info);
	for (u32 i = 1; i < info->modules_count; i++)
		record_module(&modules[i]);
	record(MODINFO_END, 0, "");

	for (u32 i = 0; i < TABLE_ENTRIES; i++) {
		pml4[i] = (u32)pdp | PAGE_PRESENT_WRITABLE;
		pdp[i] = (u32)pd | PAGE_PRESENT_WRITABLE;
		pd[i] = ((u64)i * PAGE_2M) | PAGE_LARGE | PAGE_PRESENT_WRITABLE;
	}
	print("stub: entering the kernel\r\n");
	enter_kernel((u32)pml4, (u32)metadata, all_end, (u32)elf->entry, (u32)(elf->entry >> 32));
}
