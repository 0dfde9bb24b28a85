! The four collectives by the module mpi_f08, in place too.
program correct
    use mpi_f08
    implicit none
    integer :: ierror, rank, size, i, sum_in, sum_out
    type(MPI_Comm) :: comm
    double precision :: numbers(1000), total(1000)
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
    if (rank == 0) print '(a)', "fortran is right"
    call MPI_Finalize(ierror)
contains
    subroutine must(good)
        logical, intent(in) :: good
        integer :: code
        if (.not. good) call MPI_Abort(MPI_COMM_WORLD, 1, code)
    end subroutine
end program
