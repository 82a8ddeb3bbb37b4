#include "exported.c"
#include "slot.c"
#include "suspend.c"
