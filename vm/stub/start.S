/*
 * The two ends of the boot stub: _start, where QEMU enters it as a multiboot program in 32-bit
 * protected mode, and enter_kernel, which switches to long mode and jumps to the kernel.
 */

	/* Multiboot 1: magic, flags (1: align modules to pages, 2: memory map), checksum. */
	.set	MB_MAGIC, 0x1badb002
	.set	MB_FLAGS, 0x3

	.set	CR4_PSE_PAE, 0x30
	.set	MSR_EFER, 0xc0000080
	.set	EFER_LME, 0x100
	.set	CR0_PG_PE, 0x80000001

	.set	CODE64, 0x8
	.set	DATA, 0x10

	.section .multiboot, "a"
	.align	4
	.long	MB_MAGIC, MB_FLAGS, -(MB_MAGIC + MB_FLAGS)

	.text
	.code32
	.globl	_start
_start:
	mov	$stack_top, %esp
	push	%ebx			/* multiboot information */
	push	%eax			/* the loader's magic */
	call	stub_main
1:	hlt
	jmp	1b

/*
 * void enter_kernel(u32 cr3, u32 modulep, u32 kernend, u32 entry_low, u32 entry_high)
 *
 * The kernel's locore wants long mode, the kernel mapped where it is linked, and a stack that holds
 * a word of padding, modulep and kernend, 32 bits each.
 */
	.globl	enter_kernel
enter_kernel:
	mov	4(%esp), %eax
	mov	8(%esp), %edi
	mov	12(%esp), %esi
	mov	16(%esp), %ebx
	mov	20(%esp), %ebp
	mov	%eax, %cr3
	mov	%cr4, %eax
	or	$CR4_PSE_PAE, %eax
	mov	%eax, %cr4
	mov	$MSR_EFER, %ecx
	rdmsr
	or	$EFER_LME, %eax
	wrmsr
	mov	%cr0, %eax
	or	$CR0_PG_PE, %eax
	mov	%eax, %cr0
	lgdt	gdt_pointer
	ljmp	$CODE64, $in_long_mode

	.code64
in_long_mode:
	mov	$DATA, %eax
	mov	%eax, %ds
	mov	%eax, %es
	mov	%eax, %ss
	mov	$stack_top, %esp
	mov	%ebp, %ecx
	shl	$32, %rcx
	mov	%ebx, %ebx		/* clears the upper half */
	or	%rbx, %rcx
	sub	$16, %rsp
	mov	%edi, 4(%rsp)
	mov	%esi, 8(%rsp)
	jmp	*%rcx

	.section .rodata
	.align	8
gdt:
	.quad	0
	.quad	0x00209a0000000000	/* CODE64: present, executable, long */
	.quad	0x00cf92000000ffff	/* DATA: present, writable, flat */
gdt_pointer:
	.word	gdt_pointer - gdt - 1
	.long	gdt

	.bss
	.align	16
	.space	16384
stack_top:
