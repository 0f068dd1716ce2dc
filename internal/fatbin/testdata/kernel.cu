// The kernel of the fixtures; generate.sh compiles it.
extern "C" __global__ void scale(float *x, float f)
{
	x[threadIdx.x] *= f;
}
