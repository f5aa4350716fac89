/* Instance of gemm_impl.h for sdot. */
#include "gemm_impl.h"
