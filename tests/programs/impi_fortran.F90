! impi_fortran: uses messages, collectives, groups and topologies in Fortran over MPI_COMM_WORLD, and checks each result. It knows
! nothing of IMPI.
!     impi_fortran rank=R size=N
! It uses the module mpi, or with -DF08 mpi_f08.
#ifdef F08
#define HANDLE(kind) type(kind)
#define STATUS type(MPI_Status)
#define STATUSES(count) type(MPI_Status), dimension(count)
#define SOURCE_OF(status) status%MPI_SOURCE
#else
#define HANDLE(kind) integer
#define STATUS integer, dimension(MPI_STATUS_SIZE)
#define STATUSES(count) integer, dimension(MPI_STATUS_SIZE, count)
#define SOURCE_OF(status) status(MPI_SOURCE)
#endif

program impi_fortran
#ifdef F08
    use mpi_f08
#else
    use mpi
#endif
    implicit none
    integer :: rank, size, to, from, error

    call MPI_Init(error)
    call MPI_Comm_rank(MPI_COMM_WORLD, rank, error)
    call MPI_Comm_size(MPI_COMM_WORLD, size, error)
    to = mod(rank + 1, size)
    from = mod(rank + size - 1, size)
    call messages()
    call collectives()
    call groups()
    call topology()
    print '(a,i0,a,i0)', 'impi_fortran rank=', rank, ' size=', size
    call MPI_Finalize(error)

contains

    subroutine ensure(condition, line)
        logical, intent(in) :: condition
        integer, intent(in) :: line

        if (.not. condition) then
            print '(a,i0,a,i0)', 'impi_fortran: rank ', rank, ', line ', line
            call MPI_Abort(MPI_COMM_WORLD, 1, error)
        end if
    end subroutine

    subroutine messages()
        integer :: in(2), out(2), i
        HANDLE(MPI_Request) :: requests(4)
        HANDLE(MPI_Message) :: message
        STATUSES(4) :: all
        STATUS :: one

        out = [rank, 10 * rank]
        in = -1
        do i = 1, 2
            call MPI_Irecv(in(i), 1, MPI_INTEGER, from, i, MPI_COMM_WORLD, requests(i), error)
            call MPI_Isend(out(i), 1, MPI_INTEGER, to, i, MPI_COMM_WORLD, requests(2 + i), error)
        end do
        call MPI_Waitall(4, requests, all, error)
        call ensure(in(1) == from .and. in(2) == 10 * from, __LINE__)
        call ensure(requests(1) == MPI_REQUEST_NULL, __LINE__)
        call MPI_Sendrecv(out, 1, MPI_INTEGER, to, 3, in, 1, MPI_INTEGER, MPI_ANY_SOURCE, 3, MPI_COMM_WORLD, one, error)
        call ensure(in(1) == from .and. SOURCE_OF(one) == from, __LINE__)
        call MPI_Isend(out(2), 1, MPI_INTEGER, to, 4, MPI_COMM_WORLD, requests(1), error)
        call MPI_Mprobe(MPI_ANY_SOURCE, 4, MPI_COMM_WORLD, message, one, error)
        call MPI_Mrecv(in, 1, MPI_INTEGER, message, MPI_STATUS_IGNORE, error)
        call MPI_Wait(requests(1), MPI_STATUS_IGNORE, error)
        call ensure(in(1) == 10 * from .and. SOURCE_OF(one) == from, __LINE__)
    end subroutine

    subroutine collectives()
        integer :: sum, first(size), out(size), in(size), ones(size), places(size), i
        HANDLE(MPI_Datatype) :: types(size)
        HANDLE(MPI_Request) :: request

        sum = rank
        call MPI_Allreduce(MPI_IN_PLACE, sum, 1, MPI_INTEGER, MPI_SUM, MPI_COMM_WORLD, error)
        call ensure(sum == size * (size - 1) / 2, __LINE__)
        first = rank
        call MPI_Bcast(first, size, MPI_INTEGER, size - 1, MPI_COMM_WORLD, error)
        call ensure(all(first == size - 1), __LINE__)
        call MPI_Gather(rank, 1, MPI_INTEGER, in, 1, MPI_INTEGER, 0, MPI_COMM_WORLD, error)
        call ensure(rank /= 0 .or. all(in == [(i, i = 0, size - 1)]), __LINE__)
        out = [(100 * rank + i, i = 0, size - 1)]
        ones = 1
        places = [(4 * i, i = 0, size - 1)]
        types = MPI_INTEGER
        call MPI_Alltoallw(out, ones, places, types, in, ones, places, types, MPI_COMM_WORLD, error)
        call ensure(all(in == [(100 * i + rank, i = 0, size - 1)]), __LINE__)
        call MPI_Ialltoallw(MPI_IN_PLACE, ones, places, types, out, ones, places, types, MPI_COMM_WORLD, request, error)
        call MPI_Wait(request, MPI_STATUS_IGNORE, error)
        call ensure(all(out == in), __LINE__)
        in(1) = -1
        call MPI_Alltoallw(rank, ones, places, types, in, ones, places, types, MPI_COMM_SELF, error)
        call ensure(in(1) == rank, __LINE__)
    end subroutine

    subroutine groups()
        integer :: members, value, number
        HANDLE(MPI_Group) :: world, some
        HANDLE(MPI_Comm) :: part, copy

        call MPI_Comm_group(MPI_COMM_WORLD, world, error)
        call MPI_Group_size(world, members, error)
        call ensure(members == size, __LINE__)
        call MPI_Group_incl(world, 2, [size - 1, 0], some, error)
        call MPI_Comm_create(MPI_COMM_WORLD, some, part, error)
        if (rank == 0 .or. rank == size - 1) then
            call MPI_Comm_rank(part, number, error)
            call ensure(number == merge(1, 0, rank == 0), __LINE__)
            value = merge(7, 0, number == 0)
            call MPI_Bcast(value, 1, MPI_INTEGER, 0, part, error)
            call ensure(value == 7, __LINE__)
            call MPI_Comm_free(part, error)
        else
            call ensure(part == MPI_COMM_NULL, __LINE__)
        end if
        call MPI_Group_free(some, error)
        call MPI_Group_free(world, error)
        call MPI_Comm_dup(MPI_COMM_WORLD, copy, error)
        call MPI_Allreduce(rank, value, 1, MPI_INTEGER, MPI_MAX, copy, error)
        call ensure(value == size - 1, __LINE__)
        call MPI_Comm_free(copy, error)
    end subroutine

    subroutine topology()
        integer :: source, destination
        HANDLE(MPI_Comm) :: ring

        call MPI_Cart_create(MPI_COMM_WORLD, 1, [size], [.true.], .false., ring, error)
        call MPI_Cart_shift(ring, 0, 1, source, destination, error)
        call ensure(source == from .and. destination == to, __LINE__)
        call MPI_Comm_free(ring, error)
    end subroutine
end program
