/* dlsym and dlvsym. Both call vgpu_pick_* and then either return its
 * result or JUMP to the real function with the registers and the return address
 * as the caller left them: glibc finds the caller by that address, and what
 * RTLD_NEXT and RTLD_DEFAULT mean depends on the caller.
 *
 * vgpu_pick_* returns { the address to jump to, or NULL; the result if not jumping }. */
#if defined(__x86_64__)
.macro LOOKUP name, pick
	.globl	\name
	.type	\name, @function
\name:
	.cfi_startproc
	endbr64
	subq	$24, %rsp
	.cfi_adjust_cfa_offset 24
	movq	%rdi, 0(%rsp)
	movq	%rsi, 8(%rsp)
	movq	%rdx, 16(%rsp)
	call	\pick
	movq	%rdx, %rcx
	movq	0(%rsp), %rdi
	movq	8(%rsp), %rsi
	movq	16(%rsp), %rdx
	addq	$24, %rsp
	.cfi_adjust_cfa_offset -24
	testq	%rax, %rax
	je	1f
	jmp	*%rax
1:	movq	%rcx, %rax
	ret
	.cfi_endproc
	.size	\name, . - \name
.endm
#elif defined(__aarch64__)
.macro LOOKUP name, pick
	.globl	\name
	.type	\name, %function
\name:
	.cfi_startproc
	hint	#34		/* bti c */
	stp	x29, x30, [sp, #-48]!
	.cfi_adjust_cfa_offset 48
	.cfi_rel_offset x29, 0
	.cfi_rel_offset x30, 8
	stp	x0, x1, [sp, #16]
	str	x2, [sp, #32]
	bl	\pick
	mov	x16, x0
	mov	x17, x1
	ldp	x0, x1, [sp, #16]
	ldr	x2, [sp, #32]
	ldp	x29, x30, [sp], #48
	.cfi_adjust_cfa_offset -48
	.cfi_restore x29
	.cfi_restore x30
	cbz	x16, 1f
	br	x16
1:	mov	x0, x17
	ret
	.cfi_endproc
	.size	\name, . - \name
.endm
#else
#error "unknown machine: write its dlsym here"
#endif

	.text
	LOOKUP dlsym, vgpu_pick_dlsym
	LOOKUP dlvsym, vgpu_pick_dlvsym
	.section .note.GNU-stack, "", %progbits
