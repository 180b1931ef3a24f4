# NWChem: the energy of a water molecule; Fortran, with Global Arrays on one-sided communication.
about='NWChem|quantum chemistry|Fortran'
mpi=openmpi4
packages=(nwchem-openmpi)
job=(-n 2 nwchem.openmpi "$inputs/nwchem.nw")
# docs/mpis.md: Debian leaves out what Open MPI 4.1 has for windows between nodes.
two_nodes=(-x 'OMPI_MCA_osc=^ucx')
results() { grep -E 'Total (SCF|DFT) energy|Nuclear repulsion'; }
