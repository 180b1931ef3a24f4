"""Solves the Poisson equation on a square; rank 0 prints the iterations and the norm of the solution."""

from petsc4py import PETSc

SIDE = 200

grid = PETSc.DMDA().create([SIDE, SIDE], stencil_width=1, setup=True)
matrix = grid.createMatrix()
(left, right), (bottom, top) = grid.getRanges()
row, column = PETSc.Mat.Stencil(), PETSc.Mat.Stencil()
for j in range(bottom, top):
    for i in range(left, right):
        row.index = (i, j, 0)
        for di, dj, value in ((0, 0, 4.0), (-1, 0, -1.0), (1, 0, -1.0), (0, -1, -1.0), (0, 1, -1.0)):
            if 0 <= i + di < SIDE and 0 <= j + dj < SIDE:
                column.index = (i + di, j + dj, 0)
                matrix.setValueStencil(row, column, value)
matrix.assemble()
solution, source = matrix.createVecs()
source.set(1.0)
solver = PETSc.KSP().create()
solver.setOperators(matrix)
solver.setType("cg")
solver.getPC().setType("jacobi")
solver.setTolerances(rtol=1e-8)
solver.solve(source, solution)
PETSc.Sys.Print(f"iterations {solver.getIterationNumber()} norm {solution.norm():.10e}")
