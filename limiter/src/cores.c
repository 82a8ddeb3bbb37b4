#include "cores.h"

struct cores cores;
