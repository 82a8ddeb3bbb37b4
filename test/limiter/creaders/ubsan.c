/* What the compiler calls at undefined behaviour; its own library would print and go on. */
#include <stdlib.h>

/* By its assembler name: the compiler has types of its own for these. */
#define FATAL(name)                                                       \
	void fatal_##name(void) __asm__("__ubsan_handle_" #name); \
	void fatal_##name(void)                                           \
	{                                                                 \
		abort();                                                  \
	}

FATAL(add_overflow)
FATAL(builtin_unreachable)
FATAL(divrem_overflow)
FATAL(float_cast_overflow)
FATAL(invalid_builtin)
FATAL(load_invalid_value)
FATAL(missing_return)
FATAL(mul_overflow)
FATAL(negate_overflow)
FATAL(nonnull_arg)
FATAL(nonnull_return_v1)
FATAL(out_of_bounds)
FATAL(pointer_overflow)
FATAL(shift_out_of_bounds)
FATAL(sub_overflow)
FATAL(type_mismatch_v1)
FATAL(vla_bound_not_positive)
