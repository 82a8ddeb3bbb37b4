/*
 * Images of modules, as PTX text. Of a cubin that is one line for each kernel and variable that its symbols name; a fat binary gives
 * its best part for the GPU. The output of the linker is a cubin that holds the text itself.
 */
#define _GNU_SOURCE
#include "image.h"

#include <ctype.h>
#include <elf.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MACHINE_CUDA 190
#define SYMBOL_ENTRY 0x10 /* of st_other */
#define ABI_WITH_ARCHITECTURE 7 /* in the lowest byte of e_flags */
#define TEXT_SECTION ".simgpu.ptx"

#define FAT_MAGIC 0xba55ed50u
#define WRAPPER_MAGIC 0x466243b1u
#define FAT_LZ4 0x2000u
#define FAT_COMPRESSED 0xf000u
enum { FAT_PTX = 1, FAT_CUBIN = 2 };

struct fat_header {
	uint32_t magic;
	uint16_t version, header_bytes;
	uint64_t bytes;
};

struct fat_part {
	uint16_t kind, version;
	uint32_t header_bytes;
	uint64_t bytes; /* to the next part */
	uint32_t compressed_bytes;
	uint32_t unused[2];
	uint32_t architecture;
	uint32_t unused2[2];
	uint64_t flags, unused3;
	uint64_t uncompressed_bytes;
};

_Static_assert(sizeof(struct fat_header) == 16 && sizeof(struct fat_part) == 64, "as in a fat binary");

static CUresult check_ptx(const unsigned char *image)
{
	for (int i = 0; i < 64 && image[i]; i++) {
		if (image[i] > 126 || (image[i] < 32 && !isspace(image[i])))
			return CUDA_ERROR_INVALID_IMAGE;
	}
	if (!strstr((const char *)image, ".version") || !strstr((const char *)image, ".target"))
		return image[0] ? CUDA_ERROR_INVALID_PTX : CUDA_ERROR_INVALID_IMAGE;
	return CUDA_SUCCESS;
}

static const Elf64_Shdr *sections(const Elf64_Ehdr *elf)
{
	return (const Elf64_Shdr *)((const char *)elf + elf->e_shoff);
}

static const char *section_name(const Elf64_Ehdr *elf, unsigned i)
{
	return (const char *)elf + sections(elf)[elf->e_shstrndx].sh_offset + sections(elf)[i].sh_name;
}

/* A variable is global or constant data; others are tables of the driver's. */
static bool is_data(const Elf64_Ehdr *elf, const Elf64_Sym *symbol)
{
	const char *name;

	if (ELF64_ST_TYPE(symbol->st_info) != STT_OBJECT || !symbol->st_size || symbol->st_shndx >= elf->e_shnum)
		return false;
	name = section_name(elf, symbol->st_shndx);
	return !strncmp(name, ".nv.global", 10) || !strcmp(name, ".nv.constant3");
}

static void write_symbols(FILE *out, const Elf64_Ehdr *elf, const Elf64_Shdr *table)
{
	const Elf64_Sym *symbols = (const Elf64_Sym *)((const char *)elf + table->sh_offset);
	const char *names = (const char *)elf + sections(elf)[table->sh_link].sh_offset;

	for (uint64_t i = 0; i < table->sh_size / sizeof(*symbols); i++) {
		const Elf64_Sym *s = &symbols[i];

		if (s->st_shndx == SHN_UNDEF && names[s->st_name]) /* of the device's runtime */
			fprintf(out, ".extern .func %s;\n", names + s->st_name);
		else if (ELF64_ST_TYPE(s->st_info) == STT_FUNC && s->st_other & SYMBOL_ENTRY)
			fprintf(out, ".visible .entry %s() { ret; }\n", names + s->st_name);
		else if (is_data(elf, s))
			fprintf(out, ".visible .global .align 8 .b8 %s[%llu];\n", names + s->st_name, (unsigned long long)s->st_size);
	}
}

static CUresult write_cubin(FILE *out, const unsigned char *image, unsigned capability)
{
	const Elf64_Ehdr *elf = (const Elf64_Ehdr *)image;

	if (image[EI_CLASS] != ELFCLASS64 || elf->e_machine != MACHINE_CUDA || elf->e_shentsize != sizeof(Elf64_Shdr) ||
	    elf->e_shstrndx >= elf->e_shnum)
		return CUDA_ERROR_NO_BINARY_FOR_GPU;
	for (unsigned i = 0; i < elf->e_shnum; i++) {
		if (!strcmp(section_name(elf, i), TEXT_SECTION)) {
			fwrite(image + sections(elf)[i].sh_offset, 1, sections(elf)[i].sh_size, out);
			return CUDA_SUCCESS;
		}
	}
	if (image[EI_ABIVERSION] == ABI_WITH_ARCHITECTURE &&
	    ((elf->e_flags & 0xff) / 10 != capability / 10 || (elf->e_flags & 0xff) > capability))
		return CUDA_ERROR_NO_BINARY_FOR_GPU;
	fprintf(out, ".version 8.0\n.target sm_%u\n", capability);
	for (unsigned i = 0; i < elf->e_shnum; i++) {
		if (sections(elf)[i].sh_type == SHT_SYMTAB)
			write_symbols(out, elf, &sections(elf)[i]);
	}
	return CUDA_SUCCESS;
}

/* One block of LZ4. False: it is damaged. */
static bool unpack(const unsigned char *in, size_t bytes, char *out, size_t room)
{
	const unsigned char *end = in + bytes;
	size_t done = 0;

	while (in < end) {
		unsigned token = *in++;
		size_t literals = token >> 4, match = token & 15, offset;

		if (literals == 15) {
			do {
				if (in == end)
					return false;
				literals += *in;
			} while (*in++ == 255);
		}
		if (literals > (size_t)(end - in) || literals > room - done)
			return false;
		memcpy(out + done, in, literals);
		done += literals;
		in += literals;
		if (in == end)
			break;
		if (end - in < 2)
			return false;
		offset = in[0] | (size_t)in[1] << 8;
		in += 2;
		if (match == 15) {
			do {
				if (in == end)
					return false;
				match += *in;
			} while (*in++ == 255);
		}
		match += 4;
		if (!offset || offset > done || match > room - done)
			return false;
		for (; match; match--, done++)
			out[done] = out[done - offset];
	}
	return done == room;
}

/* How well a part fits: cubins of the same major version before PTX, the newest first; 0: not at all. */
static unsigned fit(const struct fat_part *p, unsigned capability)
{
	if (p->architecture > capability || ((p->flags & FAT_COMPRESSED) && !(p->flags & FAT_LZ4)))
		return 0;
	if (p->kind == FAT_CUBIN)
		return p->architecture / 10 == capability / 10 ? 1000 + p->architecture : 0;
	return p->kind == FAT_PTX ? p->architecture : 0;
}

static CUresult write_part(FILE *out, const struct fat_part *p, unsigned capability)
{
	const unsigned char *data = (const unsigned char *)p + p->header_bytes;
	size_t bytes = p->flags & FAT_LZ4 ? p->uncompressed_bytes : p->bytes;
	char *copy = calloc(1, bytes + 1);
	CUresult r = CUDA_SUCCESS;

	if (!copy)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!(p->flags & FAT_LZ4))
		memcpy(copy, data, bytes);
	else if (!unpack(data, p->compressed_bytes, copy, bytes))
		r = CUDA_ERROR_INVALID_IMAGE;
	if (!r)
		r = image_write(out, copy, capability);
	free(copy);
	return r;
}

static CUresult write_fat(FILE *out, const unsigned char *image, unsigned capability)
{
	const struct fat_header *h = (const struct fat_header *)image;
	const struct fat_part *best = NULL;

	for (uint64_t at = 0; at + sizeof(struct fat_part) <= h->bytes;) {
		const struct fat_part *p = (const struct fat_part *)(image + h->header_bytes + at);

		if (fit(p, capability) > (best ? fit(best, capability) : 0))
			best = p;
		at += p->header_bytes + p->bytes;
		if (!p->header_bytes)
			break;
	}
	return best ? write_part(out, best, capability) : CUDA_ERROR_NO_BINARY_FOR_GPU;
}

CUresult image_write(FILE *out, const void *image, unsigned capability)
{
	const unsigned char *bytes = image;
	uint32_t magic = 0;
	CUresult r;

	for (int i = 0; i < 4; i++) {
		magic |= (uint32_t)bytes[i] << 8 * i;
		if (!bytes[i])
			break;
	}
	if (magic == WRAPPER_MAGIC) {
		const void *data;

		memcpy(&data, bytes + 8, sizeof(data));
		return image_write(out, data, capability);
	}
	if (magic == FAT_MAGIC)
		return write_fat(out, bytes, capability);
	if (bytes[0] == 0x7f && bytes[1] == 'E')
		return write_cubin(out, bytes, capability);
	r = check_ptx(bytes);
	if (!r)
		fprintf(out, "%s\n", (const char *)image);
	return r;
}

CUresult image_text(const void *image, unsigned capability, char **text)
{
	size_t bytes;
	FILE *out = open_memstream(text, &bytes);
	CUresult r;

	if (!out)
		return CUDA_ERROR_OUT_OF_MEMORY;
	r = image_write(out, image, capability);
	if (fclose(out))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (r) {
		free(*text);
		*text = NULL;
	}
	return r;
}

void *image_cubin(const char *text, unsigned capability, size_t *bytes)
{
	static const char names[] = "\0" TEXT_SECTION "\0.shstrtab";
	const size_t names_at = sizeof(Elf64_Ehdr), table_at = names_at + (sizeof(names) + 7) / 8 * 8;
	const size_t text_at = table_at + 3 * sizeof(Elf64_Shdr), length = strlen(text);
	Elf64_Ehdr *elf = calloc(1, text_at + length + 1);
	Elf64_Shdr *table;

	if (!elf)
		return NULL;
	memcpy(elf->e_ident, ELFMAG, SELFMAG);
	elf->e_ident[EI_CLASS] = ELFCLASS64;
	elf->e_ident[EI_DATA] = ELFDATA2LSB;
	elf->e_ident[EI_VERSION] = EV_CURRENT;
	elf->e_ident[EI_ABIVERSION] = ABI_WITH_ARCHITECTURE;
	elf->e_type = ET_EXEC;
	elf->e_machine = MACHINE_CUDA;
	elf->e_version = EV_CURRENT;
	elf->e_flags = capability;
	elf->e_ehsize = sizeof(*elf);
	elf->e_shoff = table_at;
	elf->e_shentsize = sizeof(*table);
	elf->e_shnum = 3;
	elf->e_shstrndx = 2;
	memcpy((char *)elf + names_at, names, sizeof(names));
	table = (Elf64_Shdr *)((char *)elf + table_at);
	table[1] = (Elf64_Shdr){.sh_name = 1, .sh_type = SHT_PROGBITS, .sh_offset = text_at, .sh_size = length, .sh_addralign = 1};
	table[2] = (Elf64_Shdr){.sh_name = 1 + sizeof(TEXT_SECTION), .sh_type = SHT_STRTAB, .sh_offset = names_at,
				.sh_size = sizeof(names), .sh_addralign = 1};
	memcpy((char *)elf + text_at, text, length);
	*bytes = text_at + length;
	return elf;
}
