/* What the parts of this program share. */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

typedef unsigned long long u64;
enum { MIB = 1 << 20 };

#define CALL(name, ...) ({ int (*f_)() = (int (*)())find(#name); f_ ? f_(__VA_ARGS__) : -1; })
#define MUST(name, ...) must(CALL(name, __VA_ARGS__), #name)

void *find(const char *name);
void must(int result, const char *what);
void set_up(void);
int launch(void);
extern void *function; /* the kernel */

struct section { const char *name; void (*run)(void); };
const struct section *section_of(const char *name);
void corpse(bool exports);
void companion(const char *section);
void end_companion(void);
extern pid_t beside; /* the companion; 0: there is none */
extern pid_t maker; /* of memory that the victim opens; 0: there is none */
void end_maker(void);
extern int held; /* a descriptor of memory of a corpse; -1: none */

int kill_at_steps(char **args);
int survive(void);
