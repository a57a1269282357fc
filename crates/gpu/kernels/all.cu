#include "rows.cu"
#include "matrix.cu"
#include "attention.cu"
#include "pack.cu"
