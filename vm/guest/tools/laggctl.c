/*
 * laggctl: asks a lagg what ifconfig(8) cannot be made to ask, and breaks links
 * at a time that is known.  It needs no library and no headers: the test machine
 * has the kernel's interface only.
 *
 *   laggctl add|del|port LAGG PORT     a request about a port
 *   laggctl proto|hash|opts LAGG NUMBER
 *   laggctl get LAGG BYTES             the table of ports, into so many bytes
 *   laggctl bad LAGG                   the same, into memory that is not there
 *   laggctl short LAGG                 the same, with a request that is cut
 *   laggctl set NAME NUMBER            writes a sysctl; prints the time before
 *   laggctl flap NAME COUNT MS         0 and 1 in turn, so often
 *
 * A word "user" in front: as nobody.  Prints the errno, 0 if there is none, and
 * for "get" the ports and bytes that came.  A port "@" is a name without an end.
 */

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long u64;

enum {
	SYS_exit = 1,
	SYS_write = 4,
	SYS_setuid = 23,
	SYS_ioctl = 54,
	SYS_socket = 97,
	SYS_clock_gettime = 232,
	SYS_nanosleep = 240,
	SYS_sysctlbyname = 570,
};

#define	AF_LOCAL	1
#define	SOCK_DGRAM	2
#define	NOBODY		65534
#define	CLOCK_REALTIME	0

/* net/if_lagg.h */
struct lacp {
	u16	prio;
	u8	mac[6];
	u16	key, portprio, portno;
	u8	state;
};

struct reqport {
	char	lagg[16], port[16];
	u32	prio, flags;
	struct lacp actor, partner;
};

struct reqall {
	char	lagg[16];
	u32	proto;
	u64	size;
	struct reqport *ports;
	int	count;
	struct lacp actor, partner;
};

struct reqflags {
	char	lagg[16];
	u32	flags;
};

struct reqopts {
	char	lagg[16];
	int	opts;
	u32	count, active, flapping;
	int	shift;
	u32	stride;
};

struct timespec {
	long	sec, nsec;
};

#define	REQUEST(direction, number, type)				\
	((direction) | (sizeof(type) & 0x1fff) << 16 | 'i' << 8 | (number))
#define	IN		0x80000000UL
#define	INOUT		0xc0000000UL

/* The errno, which is none if 0; the result goes to "value". */
static long
call(long number, long a, long b, long c, long d, long e, long f, long *value)
{
	register long r10 __asm__("r10") = d;
	register long r8 __asm__("r8") = e;
	register long r9 __asm__("r9") = f;
	unsigned char failed;
	long result = number;

	__asm__ volatile("syscall\n\tsetc %1"
	    : "+a"(result), "=r"(failed), "+d"(c), "+r"(r10), "+r"(r8), "+r"(r9)
	    : "D"(a), "S"(b)
	    : "rcx", "r11", "memory", "cc");
	if (failed)
		return (result);
	if (value != 0)
		*value = result;
	return (0);
}

static void
copy(char *to, const char *from, u64 size)
{
	u64 i;

	for (i = 0; i + 1 < size && from[i] != 0; i++)
		to[i] = from[i];
	to[i] = 0;
}

static void
copy_port(char *to, const char *from)
{
	int i;

	if (from[0] != '@') {
		copy(to, from, 16);
		return;
	}
	for (i = 0; i < 16; i++)
		to[i] = 'x';
}

static int
same(const char *a, const char *b)
{

	while (*a != 0 && *a == *b)
		a++, b++;
	return (*a == *b);
}

static long
number(const char *text)
{
	int is_negative = *text == '-';
	long value = 0;

	for (text += is_negative; *text >= '0' && *text <= '9'; text++)
		value = value * 10 + *text - '0';
	return (is_negative ? -value : value);
}

static void
print(long value, int width, char end)
{
	char text[32];
	int at = sizeof(text);

	text[--at] = end;
	do {
		text[--at] = '0' + value % 10;
		value /= 10;
		width--;
	} while (value != 0 || width > 0);
	call(SYS_write, 1, (long)(text + at), sizeof(text) - at, 0, 0, 0, 0);
}

static long
request(u64 command, void *data)
{
	long fd, error;

	error = call(SYS_socket, AF_LOCAL, SOCK_DGRAM, 0, 0, 0, 0, &fd);
	if (error != 0)
		return (error);
	return (call(SYS_ioctl, fd, command, (long)data, 0, 0, 0, 0));
}

static void
about_port(u64 command, const char *lagg, const char *port)
{
	struct reqport data = { .flags = 0 };

	copy(data.lagg, lagg, sizeof(data.lagg));
	copy_port(data.port, port);
	print(request(command, &data), 0, '\n');
}

static void
table(u64 command, const char *lagg, u64 size, struct reqport *ports)
{
	struct reqall data = { .size = size, .ports = ports };
	long error;

	copy(data.lagg, lagg, sizeof(data.lagg));
	error = request(command, &data);
	print(error, 0, ' ');
	print(data.count, 0, ' ');
	print(data.size, 0, '\n');
}

static void
write_sysctl(const char *name, u64 value)
{
	long error, length = 0;

	while (name[length] != 0)
		length++;
	error = call(SYS_sysctlbyname, (long)name, length, 0, 0, (long)&value,
	    sizeof(value), 0);
	if (error != 0)
		print(error, 0, '\n');
}

static void
print_time(void)
{
	struct timespec now = { .sec = 0 };

	call(SYS_clock_gettime, CLOCK_REALTIME, (long)&now, 0, 0, 0, 0, 0);
	print(now.sec, 0, '.');
	print(now.nsec / 1000, 6, '\n');
}

static void
flap(const char *name, long count, long ms)
{
	struct timespec span = { 0, ms * 1000000 };
	long i;

	for (i = 0; i < count; i++) {
		write_sysctl(name, i & 1);
		call(SYS_nanosleep, (long)&span, 0, 0, 0, 0, 0, 0);
	}
}

static void
act(int argc, char **argv)
{
	static struct reqport ports[64];
	struct reqflags flags = { .flags = argc > 3 ? number(argv[3]) : 0 };
	struct reqopts opts = { .opts = argc > 3 ? number(argv[3]) : 0 };
	struct reqall all = { .proto = argc > 3 ? number(argv[3]) : 0 };
	const char *what = argv[1], *lagg = argv[2];

	copy(flags.lagg, lagg, sizeof(flags.lagg));
	copy(opts.lagg, lagg, sizeof(opts.lagg));
	copy(all.lagg, lagg, sizeof(all.lagg));
	if (same(what, "add"))
		about_port(REQUEST(IN, 141, struct reqport), lagg, argv[3]);
	else if (same(what, "del"))
		about_port(REQUEST(IN, 142, struct reqport), lagg, argv[3]);
	else if (same(what, "port"))
		about_port(REQUEST(INOUT, 140, struct reqport), lagg, argv[3]);
	else if (same(what, "proto"))
		print(request(REQUEST(IN, 144, struct reqall), &all), 0, '\n');
	else if (same(what, "hash"))
		print(request(REQUEST(IN, 146, struct reqflags), &flags), 0,
		    '\n');
	else if (same(what, "opts"))
		print(request(REQUEST(IN, 153, struct reqopts), &opts), 0,
		    '\n');
	else if (same(what, "get"))
		table(REQUEST(INOUT, 143, struct reqall), lagg,
		    number(argv[3]), ports);
	else if (same(what, "bad"))
		table(REQUEST(INOUT, 143, struct reqall), lagg, sizeof(ports),
		    (struct reqport *)0x1000);
	else if (same(what, "short"))
		table(REQUEST(INOUT, 143, struct reqflags), lagg,
		    sizeof(ports), ports);
	else if (same(what, "set")) {
		print_time();
		write_sysctl(lagg, number(argv[3]));
	} else if (same(what, "flap") && argc > 4)
		flap(lagg, number(argv[3]), number(argv[4]));
}

/* The kernel hands "argc", then "argv". */
__attribute__((used)) static void
begin(long *stack)
{
	int argc = (int)stack[0];
	char **argv = (char **)(stack + 1);

	if (argc > 1 && same(argv[1], "user")) {
		call(SYS_setuid, NOBODY, 0, 0, 0, 0, 0, 0);
		argc--, argv++;
	}
	if (argc > 2)
		act(argc, argv);
	call(SYS_exit, 0, 0, 0, 0, 0, 0, 0);
}

__asm__(".globl _start\n_start:\n\tand $-16, %rsp\n\tcall begin\n");
