#include "exported.c"
#include "slot.c"
