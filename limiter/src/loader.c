#include "loader.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/auxv.h>

/* The loader's functions are looked up in the ELF tables of the loaded objects:
 * the first object after this one that defines the name, as RTLD_NEXT would.
 *
 * This runs inside the first dlsym of a process. The caller may be a sanitizer's runtime or
 * an allocator that is not initialised yet and has replaced functions of libc. So this code
 * calls no function of libc except getauxval: it reads the loader's list of objects for
 * debuggers. */

struct tables {
	const ElfW(Sym) *symbols;
	const char *strings;
	const uint32_t *gnu_hash;
	const uint32_t *sysv_hash;
	const uint16_t *versions;
	ElfW(Addr) base;
};

/* glibc relocates the pointers of a dynamic section in place; others don't. */
static const void *pointer_in(const struct tables *t, ElfW(Addr) value)
{
	return (const void *)(value < t->base ? value + t->base : value);
}

static bool read_tables(struct tables *t, ElfW(Addr) base, const ElfW(Dyn) *dyn)
{
	*t = (struct tables){ .base = base };
	for (; dyn && dyn->d_tag != DT_NULL; dyn++) {
		const void *at = pointer_in(t, dyn->d_un.d_ptr);

		switch (dyn->d_tag) {
		case DT_SYMTAB: t->symbols = at; break;
		case DT_STRTAB: t->strings = at; break;
		case DT_GNU_HASH: t->gnu_hash = at; break;
		case DT_HASH: t->sysv_hash = at; break;
		case DT_VERSYM: t->versions = at; break;
		}
	}
	return t->symbols && t->strings;
}

static bool same(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

/* The function if symbol i is a definition of name; *hidden: not its default version. */
static void *match(const struct tables *t, uint32_t i, const char *name, bool *hidden)
{
	const ElfW(Sym) *sym = &t->symbols[i];

	if (sym->st_shndx == SHN_UNDEF || ELF64_ST_TYPE(sym->st_info) != STT_FUNC || !same(t->strings + sym->st_name, name))
		return NULL;
	*hidden = t->versions && (t->versions[i] & 0x8000);
	return (void *)(t->base + sym->st_value);
}

static void *find_gnu(const struct tables *t, const char *name)
{
	const uint32_t *head = t->gnu_hash;
	uint32_t buckets = head[0], first = head[1], bloom_words = head[2];
	const uint32_t *bucket = head + 4 + bloom_words * (sizeof(ElfW(Addr)) / 4);
	const uint32_t *chain = bucket + buckets;
	uint32_t hash = 5381;
	void *old = NULL;

	for (const unsigned char *c = (const unsigned char *)name; *c; c++)
		hash = hash * 33 + *c;
	uint32_t i = buckets ? bucket[hash % buckets] : 0;
	if (i < first)
		return NULL;
	for (;; i++) {
		uint32_t link = chain[i - first];
		bool hidden = false;
		void *found = (link | 1) == (hash | 1) ? match(t, i, name, &hidden) : NULL;

		if (found && !hidden)
			return found;
		if (found)
			old = found;
		if (link & 1)
			return old;
	}
}

static void *find_sysv(const struct tables *t, const char *name)
{
	uint32_t count = t->sysv_hash[1];
	void *old = NULL;

	for (uint32_t i = 1; i < count; i++) {
		bool hidden = false;
		void *found = match(t, i, name, &hidden);

		if (found && !hidden)
			return found;
		if (found)
			old = found;
	}
	return old;
}

static void *find(const struct tables *t, const char *name)
{
	return t->gnu_hash ? find_gnu(t, name) : t->sysv_hash ? find_sysv(t, name) : NULL;
}

/* The program's dynamic section, by the headers that the kernel has mapped. */
static const ElfW(Dyn) *program_dynamic(void)
{
	const ElfW(Phdr) *headers = (const void *)getauxval(AT_PHDR);
	unsigned long count = getauxval(AT_PHNUM);
	ElfW(Addr) base = 0;

	for (unsigned long i = 0; headers && i < count; i++)
		if (headers[i].p_type == PT_PHDR)
			base = (ElfW(Addr))headers - headers[i].p_vaddr;
	for (unsigned long i = 0; headers && i < count; i++)
		if (headers[i].p_type == PT_DYNAMIC)
			return (const void *)(base + headers[i].p_vaddr);
	return NULL;
}

static const struct link_map *first_object(void)
{
	for (const ElfW(Dyn) *dyn = program_dynamic(); dyn && dyn->d_tag != DT_NULL; dyn++)
		if (dyn->d_tag == DT_DEBUG && dyn->d_un.d_ptr)
			return ((const struct r_debug *)dyn->d_un.d_ptr)->r_map;
	return NULL;
}

extern const char __ehdr_start[] __attribute__((visibility("hidden")));

struct search {
	const char *name;
	void *in_front; /* of this library: used only if no object behind it has the name */
	void *behind;
	bool passed_us;
};

/* True: the search is over. */
static bool look_into(struct search *search, ElfW(Addr) base, const ElfW(Dyn) *dyn)
{
	struct tables t;

	if (base == (ElfW(Addr))__ehdr_start) {
		search->passed_us = true;
		return false;
	}
	if (!read_tables(&t, base, dyn))
		return false;
	void *found = find(&t, search->name);
	if (found)
		*(search->passed_us ? &search->behind : &search->in_front) = found;
	return found && search->passed_us;
}

static int look_into_each(struct dl_phdr_info *info, size_t size, void *search)
{
	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
			return look_into(search, info->dlpi_addr, (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr));
	return 0;
}

static void *search_for(const char *name)
{
	struct search search = { .name = name };
	const struct link_map *object = first_object();

	if (!object) /* the program has no entry for debuggers */
		dl_iterate_phdr(look_into_each, &search);
	while (object && !look_into(&search, object->l_addr, object->l_ld))
		object = object->l_next;
	return search.behind ? search.behind : search.in_front;
}

struct front {
	const char *soname, *name;
	const char *path; /* of the object that is looked for */
	bool passed_us;   /* else this library is in another namespace (dlmopen) */
};

static bool is_named(const struct tables *t, const ElfW(Dyn) *dyn, const char *soname)
{
	for (; dyn->d_tag != DT_NULL; dyn++)
		if (dyn->d_tag == DT_SONAME)
			return same(t->strings + dyn->d_un.d_val, soname);
	return false;
}

/* True: the search is over. */
static bool look_in_front(struct front *front, ElfW(Addr) base, const ElfW(Dyn) *dyn, const char *path)
{
	struct tables t;

	if (base == (ElfW(Addr))__ehdr_start)
		return front->passed_us = true;
	if (!front->path && read_tables(&t, base, dyn) && is_named(&t, dyn, front->soname) && find(&t, front->name))
		front->path = path;
	return false;
}

static int look_in_front_each(struct dl_phdr_info *info, size_t size, void *front)
{
	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
			return look_in_front(front, info->dlpi_addr, (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr),
			                     info->dlpi_name);
	return 0;
}

const char *loader_in_front(const char *soname, const char *name)
{
	struct front front = { .soname = soname, .name = name };
	const struct link_map *object = first_object();

	if (!object)
		dl_iterate_phdr(look_in_front_each, &front);
	while (object && !look_in_front(&front, object->l_addr, object->l_ld, object->l_name))
		object = object->l_next;
	return front.passed_us ? front.path : NULL;
}

static void *once(_Atomic(void *) *slot, const char *name)
{
	/* Relaxed: no other data depends on the pointer, and every thread finds the same. */
	void *found = atomic_load_explicit(slot, memory_order_relaxed);

	if (!found) {
		found = search_for(name);
		atomic_store_explicit(slot, found, memory_order_relaxed);
	}
	return found;
}

void *loader_dlsym_address(void)
{
	static _Atomic(void *) slot;

	return once(&slot, "dlsym");
}

void *loader_dlvsym_address(void)
{
	static _Atomic(void *) slot;

	return once(&slot, "dlvsym");
}

void *loader_dlsym(void *handle, const char *name)
{
	void *(*real)(void *, const char *) = loader_dlsym_address();

	return real ? real(handle, name) : NULL;
}

void *loader_dlvsym(void *handle, const char *name, const char *version)
{
	void *(*real)(void *, const char *, const char *) = loader_dlvsym_address();

	return real ? real(handle, name, version) : NULL;
}

void *loader_function(const char *name)
{
	return loader_dlsym(RTLD_DEFAULT, name);
}

void *loader_loaded(const char *soname)
{
	void *(*open)(const char *, int) = loader_function("dlopen");

	return open ? open(soname, RTLD_LAZY | RTLD_NOLOAD) : NULL;
}

void *loader_holding(void *address)
{
	int (*where)(const void *, Dl_info *) = loader_function("dladdr");
	Dl_info info;

	if (!where || !where(address, &info) || !info.dli_fname)
		return NULL;
	return loader_loaded(info.dli_fname);
}

void loader_close(void *handle)
{
	int (*close)(void *) = loader_function("dlclose");

	if (handle && close)
		close(handle);
}
