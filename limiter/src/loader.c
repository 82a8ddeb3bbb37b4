#include "loader.h"

#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
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
	const char *soname; /* NULL: none */
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
	ElfW(Addr) soname = 0;

	*t = (struct tables){ .base = base };
	for (; dyn && dyn->d_tag != DT_NULL; dyn++) {
		const void *at = pointer_in(t, dyn->d_un.d_ptr);

		switch (dyn->d_tag) {
		case DT_SYMTAB: t->symbols = at; break;
		case DT_STRTAB: t->strings = at; break;
		case DT_GNU_HASH: t->gnu_hash = at; break;
		case DT_HASH: t->sysv_hash = at; break;
		case DT_VERSYM: t->versions = at; break;
		case DT_SONAME: soname = dyn->d_un.d_val; break;
		}
	}
	if (!t->symbols || !t->strings)
		return false;
	t->soname = soname ? t->strings + soname : NULL;
	return true;
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

/* The first object of the program's own namespace. */
static const struct link_map *first_of_program(void)
{
	for (const ElfW(Dyn) *dyn = program_dynamic(); dyn && dyn->d_tag != DT_NULL; dyn++)
		if (dyn->d_tag == DT_DEBUG && dyn->d_un.d_ptr)
			return ((const struct r_debug *)dyn->d_un.d_ptr)->r_map;
	return NULL;
}

extern const char __ehdr_start[] __attribute__((visibility("hidden")));
extern ElfW(Dyn) _DYNAMIC[] __attribute__((visibility("hidden")));

/* This library in the loader's list. If functions are bound lazily, glibc's loader has written that
 * address into the second word of the table that they are bound in. NULL: it has not. */
static const struct link_map *own_object(void)
{
	const struct tables own = { .base = (ElfW(Addr))__ehdr_start };
	const struct link_map *const *table = NULL;

	for (const ElfW(Dyn) *dyn = _DYNAMIC; !table && dyn->d_tag != DT_NULL; dyn++)
		if (dyn->d_tag == DT_PLTGOT)
			table = pointer_in(&own, dyn->d_un.d_ptr);
	return table && table[1] && table[1]->l_ld == _DYNAMIC ? table[1] : NULL;
}

/* The first object of this library's namespace, or else of the program's; NULL: neither is known. */
static const struct link_map *first_object(void)
{
	const struct link_map *object = own_object();

	if (!object)
		return first_of_program();
	while (object->l_prev)
		object = object->l_prev;
	return object;
}

struct search {
	/* Looks into one object; true: the search is over. */
	bool (*look)(struct search *, const struct tables *, const char *path);
	const char *name;
	void *in_front, *behind; /* the function in objects in front of this library and behind it */
	const char *driver;      /* the path of a driver's library in front of it */
	bool passed_us;
};

static bool visit(struct search *search, ElfW(Addr) base, const ElfW(Dyn) *dyn, const char *path)
{
	struct tables t;

	if (base != (ElfW(Addr))__ehdr_start)
		return read_tables(&t, base, dyn) && search->look(search, &t, path);
	search->passed_us = true;
	return !search->name;
}

static int visit_each(struct dl_phdr_info *info, size_t size, void *search)
{
	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++)
		if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
			return visit(search, info->dlpi_addr, (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr), info->dlpi_name);
	return 0;
}

/* Goes through the objects of this library's namespace in their order. */
static void walk(struct search *search)
{
	const struct search fresh = *search;
	const struct link_map *object = first_object();

	while (object && !visit(search, object->l_addr, object->l_ld, object->l_name))
		object = object->l_next;
	if (search->passed_us)
		return;
	*search = fresh; /* that was another namespace (dlmopen), or nothing; libc goes through the caller's */
	dl_iterate_phdr(visit_each, search);
}

static bool look_for_function(struct search *search, const struct tables *t, const char *path)
{
	(void)path;
	void *found = find(t, search->name);
	if (found)
		*(search->passed_us ? &search->behind : &search->in_front) = found;
	return found && search->passed_us;
}

static void *search_for(const char *name)
{
	struct search search = { .look = look_for_function, .name = name };

	walk(&search);
	return search.behind ? search.behind : search.in_front;
}

static bool look_for_driver(struct search *search, const struct tables *t, const char *path)
{
	const char *soname = t->soname;

	/* The first letters keep most programs' starts from a page of constants. */
	if (!soname || soname[0] != 'l' || soname[1] != 'i' || soname[2] != 'b')
		return false;
	if ((same(soname, "libcuda.so.1") && find(t, "cuInit")) ||
	    (same(soname, "libnvidia-ml.so.1") && find(t, "nvmlDeviceGetMemoryInfo")))
		search->driver = path;
	return search->driver;
}

const char *loader_driver_in_front(void)
{
	struct search search = { .look = look_for_driver };

	walk(&search);
	return search.driver;
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

static void *open_with(const char *soname, int flags)
{
	void *(*open)(const char *, int) = loader_function("dlopen");

	return open ? open(soname, flags) : NULL;
}

void *loader_loaded(const char *soname)
{
	return open_with(soname, RTLD_LAZY | RTLD_NOLOAD);
}

void *loader_load(const char *soname)
{
	return open_with(soname, RTLD_LAZY);
}

void *loader_holding(void *address)
{
	int (*where)(const void *, Dl_info *) = loader_function("dladdr");
	Dl_info info;

	if (!where || !where(address, &info) || !info.dli_fname)
		return NULL;
	return loader_loaded(info.dli_fname);
}

bool loader_is_copy(const void *address, const void *own)
{
	enum { PAGE = 4096, HEAD = 512 }; /* the headers and the build ID, with which a linker starts a file */
	int (*where)(const void *, Dl_info *) = NULL;
	ptrdiff_t offset = (const char *)own - __ehdr_start;
	Dl_info info;

	if (address != own && ((uintptr_t)address - (uintptr_t)own) % PAGE == 0)
		where = loader_function("dladdr");
	return where && where(address, &info) && (const char *)address - (const char *)info.dli_fbase == offset &&
	       !memcmp(info.dli_fbase, __ehdr_start, HEAD);
}

void loader_close(void *handle)
{
	int (*close)(void *) = loader_function("dlclose");

	if (handle && close)
		close(handle);
}
