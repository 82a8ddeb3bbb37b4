/* Inside simctl: what its files share. */
#ifndef SIMDRIVER_SIMCTL_H
#define SIMDRIVER_SIMCTL_H

#include "state.h"

#include <stdio.h>

/* Prints an error message to stderr and returns false, so that a caller can `return complain(…)`. */
bool complain(const char *format, ...) __attribute__((format(printf, 1, 2)));
int open_state(struct view *v, const char *path); /* 0, or the exit status after a message */

/* A GPU as the profile has it, with the uuid, minor number and PCI address that its position gives. */
bool gpu_from_profile(struct gpu *c, const char *profile, unsigned position);
void list_profiles(FILE *out);
/* key = value, as in the config file's [gpu] section. */
bool gpu_set(struct gpu *c, const char *key, const char *value);
bool gpu_from_text(struct state *s, const char *text); /* PROFILE[:key=value[,key=value…]] */
bool driver_set(struct state *s, const char *key, const char *value);
bool config_read(struct state *s, const char *path);

int fail_symbol(struct view *v, const char *symbol, const char *count_text, const char *error_text);
int unfail_symbol(struct view *v, const char *symbol);

bool mig_key(struct gpu *c, const char *value); /* of --gpu and the config file: on, or PROFILE[:START] to make */
/* A MIG device by UUID or GPU:INDEX. */
bool find_instance(const struct state *s, const char *text, unsigned *gpu, unsigned *slot);
int command_mig(struct view *v, unsigned gpu, const char *const *words, unsigned count);

int show_status(struct view *v, const char *path, bool json);
void json_string(FILE *out, const char *text);

int show_missed(struct view *v, bool json);
int clear_missed(struct view *v);

struct cdi_options {
	const char *state, *lib_dir, *dev_dir, *out;
};
int write_cdi(struct view *v, const struct cdi_options *o);
int make_devnodes(struct view *v, const char *dev_dir);

#endif
