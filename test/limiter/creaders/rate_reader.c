#include "rate.c"
