/* UTF-8 and the GPT-2 byte alphabet. */
#ifndef CLB_TEXT_UTF8_H
#define CLB_TEXT_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Length of the valid UTF-8 sequence at p (n > 0 bytes there): 1 to 4, or 0 if the first byte does not begin one
 * (stray or missing continuation, overlong form, surrogate, above U+10FFFF). *cp may be NULL. */
size_t clb_utf8_decode(const char *p, size_t n, uint32_t *cp);
/* Writes cp (a valid scalar value) and returns the number of bytes, at most 4. */
size_t clb_utf8_encode(uint32_t cp, char out[4]);

/* Byte-level BPE stores each byte as one printable character. The byte of a character, or -1 if it stands for none. */
int clb_byte_of_char(uint32_t cp);
uint32_t clb_char_of_byte(uint8_t byte);
/* Decodes a text of the alphabet into out (room for n bytes). False if a character is not of the alphabet; it is copied
 * as it is. */
bool clb_alphabet_decode(const char *p, size_t n, char *out, uint32_t *out_n);

#endif
