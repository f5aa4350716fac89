/* Stands for an OpenMP runtime. */
int fake_gomp_start(void);
__attribute__((visibility("default"))) int fake_gomp_start(void)
{
    return 0;
}
