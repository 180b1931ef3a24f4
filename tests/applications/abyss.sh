# ABySS: assembles a genome of 20,000 bases from short reads; C++.
about='ABySS|genome assembly|C++'
mpi=openmpi4
packages=(abyss)
job=(-n 2 /usr/lib/abyss/ABYSS-P -k 31 -o contigs.fa reads.fa)
prepare() { "$python" "$inputs/reads.py" 20000 >reads.fa; }
# Which strand of a contig it prints is up to the order of messages.
results() { awk '/^>/ { n++; next } { sum += length } END { print n, sum }' contigs.fa; }
