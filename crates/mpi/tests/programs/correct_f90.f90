! Collectives by the older Fortran interface, in place too.
program correct
    use mpi
    implicit none
    integer :: ierror, rank, size, i, sum_in, sum_out, comm
    double precision :: numbers(1000), total(1000)
    integer :: own(64), everyone(2000), counts(64), places(64)
    call MPI_Init(ierror)
    call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierror)
    call MPI_Comm_size(MPI_COMM_WORLD, size, ierror)
    call MPI_Comm_dup(MPI_COMM_WORLD, comm, ierror)
    do i = 1, 1000
        numbers(i) = dble(i*(rank + 1))
    end do
    call MPI_Allreduce(numbers, total, 1000, MPI_DOUBLE_PRECISION, MPI_SUM, comm, ierror)
    call must(ierror == MPI_SUCCESS .and. total(7) == 7.0d0*size*(size + 1)/2)
    call MPI_Allreduce(MPI_IN_PLACE, numbers, 1000, MPI_DOUBLE_PRECISION, MPI_SUM, comm, ierror)
    call must(all(numbers == total))
    sum_in = rank
    if (rank == size - 1) sum_in = 42
    call MPI_Bcast(sum_in, 1, MPI_INTEGER, size - 1, MPI_COMM_WORLD, ierror)
    call must(sum_in == 42)
    sum_out = 0
    sum_in = rank + 1
    call MPI_Reduce(sum_in, sum_out, 1, MPI_INTEGER, MPI_PROD, 0, MPI_COMM_WORLD, ierror)
    if (rank == 0) call must(sum_out == product([(i, i=1, size)]))
    call MPI_Barrier(comm, ierror)
    call must(ierror == MPI_SUCCESS)
    own = [(1000*rank + i, i=1, 64)]
    everyone = -1
    call MPI_Allgather(own, 3, MPI_INTEGER, everyone, 3, MPI_INTEGER, comm, ierror)
    call must(ierror == MPI_SUCCESS .and. all(everyone(1:3*size) == [(1000*((i - 1)/3) + mod(i - 1, 3) + 1, i=1, 3*size)]))
    call must(all(everyone(3*size + 1:) == -1))
    everyone = -1
    everyone(rank + 1) = rank + 7
    call MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, everyone, 1, MPI_INTEGER, comm, ierror)
    call must(all(everyone(1:size) == [(i + 6, i=1, size)]))
    ! Rank r gives r elements, the last rank's first, one element apart.
    counts(1:size) = [(i - 1, i=1, size)]
    places(size) = 0
    do i = size - 1, 1, -1
        places(i) = places(i + 1) + counts(i + 1) + 1
    end do
    everyone = -1
    call MPI_Allgatherv(own, rank, MPI_INTEGER, everyone, counts, places, MPI_INTEGER, comm, ierror)
    call must(right())
    everyone = -1
    call MPI_Gatherv(own, rank, MPI_INTEGER, everyone, counts, places, MPI_INTEGER, size - 1, comm, ierror)
    if (rank == size - 1) call must(right())
    everyone = -1
    call MPI_Gather(own, 2, MPI_INTEGER, everyone, 2, MPI_INTEGER, 0, comm, ierror)
    if (rank == 0) call must(all(everyone(1:2*size:2) == [(1000*(i - 1) + 1, i=1, size)]) .and. everyone(2*size + 1) == -1)
    if (rank == 0) print '(a)', "fortran is right"
    call MPI_Finalize(ierror)
contains
    logical function right()
        integer :: r
        right = count(everyone /= -1) == sum(counts(1:size))
        do r = 1, size
            right = right .and. all(everyone(places(r) + 1:places(r) + counts(r)) == [(1000*(r - 1) + i, i=1, counts(r))])
        end do
    end function
    subroutine must(good)
        logical, intent(in) :: good
        integer :: code
        if (.not. good) call MPI_Abort(MPI_COMM_WORLD, 1, code)
    end subroutine
end program
