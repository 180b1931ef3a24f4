# hpcc: benchmarks of linear algebra, memory and network; C.
about='HPC Challenge|benchmarks|C'
mpi=openmpi4
packages=(hpcc)
job=(-n 2 hpcc)
prepare() {
    rm -f hpccoutf.txt
    cp "$inputs/hpcc.txt" hpccinf.txt
}
# The rates differ from run to run; the residuals, errors and verdicts do not.
results() { grep -E '^(Success|PTRANS_residual|MPIFFT_maxErr|HPL_(N|RnormI|Anorm1|Xnorm1|BnormI))=' hpccoutf.txt | tr '=' ' '; }
