#include "exported.c"
#include "ipcrecord.c"
#include "slot.c"
#include "suspend.c"
