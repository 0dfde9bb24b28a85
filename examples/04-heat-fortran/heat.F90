! Heat in a rod: u_t = u_xx by Jacobi steps on N cells, split over the ranks,
! one ghost cell at either side. Protected by the five calls of Outlive, marked
! 1 to 5.
!
!     mpirun -n 4 ./heat-fortran CELLS STEPS OUTPUT [SLEEP_US]
!
! OUTPUT receives the final temperatures as doubles. The file is the same, bit for
! bit, for any number of ranks and however often the job was restarted. With the
! module of no_outlive.f90 it is the program as it was before.
program heat
  use, intrinsic :: iso_c_binding, only: c_int
  use, intrinsic :: iso_fortran_env, only: real64, int64, error_unit
  use mpi
  use outlive
  implicit none

  interface
    function usleep(microseconds) bind(c, name="usleep") result(code)
      import :: c_int
      integer(c_int), value :: microseconds
      integer(c_int) :: code
    end function usleep
  end interface

  real(real64), parameter :: alpha = 0.25_real64, hot = 100.0_real64
  real(real64), allocatable, target :: u(:)
  real(real64), allocatable :: next(:)
  type(outlive_job) :: job
  integer(int64) :: step, steps
  integer :: rank, ranks, ierror, code, cells, first, last, left, right, sleep_us
  character(len=1024) :: output

  call MPI_Init(ierror)
  call MPI_Comm_rank(MPI_COMM_WORLD, rank, ierror)
  call MPI_Comm_size(MPI_COMM_WORLD, ranks, ierror)
  call arguments()
  call place()

  ! The cell i of this rank is u(i), i = first..last; a rank may hold none.
  allocate (u(first - 1:last + 1), next(first - 1:last + 1))
  u = 0.0_real64
  if (first == 1) u(0) = hot
  next = u

  step = 0
  call outlive_open(job, code)                     ! 1
  call check("outlive_open")
  call outlive_protect(job, "rod", u, code)        ! 2
  call check("outlive_protect")
  call outlive_restore(job, step, code)            ! 3
  call check("outlive_restore")

  do while (step < steps)
    call outlive_checkpoint(job, step, code)       ! 4; a failed save stops nothing
    if (last >= first) call advance()
    if (sleep_us > 0) code = usleep(int(sleep_us, c_int))
    step = step + 1
  end do

  call finish()
  call outlive_close(job, code)                    ! 5
  call MPI_Finalize(ierror)

contains

  subroutine arguments()
    character(len=32) :: text
    integer :: status
    if (command_argument_count() < 3) then
      if (rank == 0) write (error_unit, '(a)') "usage: heat-fortran CELLS STEPS OUTPUT [SLEEP_US]"
      call MPI_Finalize(ierror)
      stop 64
    end if
    call get_command_argument(1, text)
    read (text, *, iostat=status) cells
    if (status /= 0 .or. cells < 1) call fail("CELLS: not a positive number")
    call get_command_argument(2, text)
    read (text, *, iostat=status) steps
    if (status /= 0 .or. steps < 0) call fail("STEPS: not a number")
    call get_command_argument(3, output)
    sleep_us = 0
    if (command_argument_count() > 3) then
      call get_command_argument(4, text)
      read (text, *, iostat=status) sleep_us
      if (status /= 0 .or. sleep_us < 0) call fail("SLEEP_US: not a number")
    end if
  end subroutine arguments

  ! The cells of rank r: the rod is split as evenly as it can be over the first
  ! min(ranks, cells) ranks; the others hold none.
  pure subroutine part_of(r, from, to)
    integer, intent(in) :: r
    integer, intent(out) :: from, to
    integer :: used
    used = min(ranks, cells)
    if (r < used) then
      from = int(int(cells, int64) * r / used) + 1
      to = int(int(cells, int64) * (r + 1) / used)
    else
      from = 1 + cells
      to = cells
    end if
  end subroutine part_of

  subroutine place()
    call part_of(rank, first, last)
    left = MPI_PROC_NULL
    right = MPI_PROC_NULL
    if (last < first) return
    if (first > 1) left = rank - 1
    if (last < cells) right = rank + 1
  end subroutine place

  subroutine advance()
    integer :: i
    call MPI_Sendrecv(u(first), 1, MPI_DOUBLE_PRECISION, left, 0, &
                      u(last + 1), 1, MPI_DOUBLE_PRECISION, right, 0, &
                      MPI_COMM_WORLD, MPI_STATUS_IGNORE, ierror)
    call MPI_Sendrecv(u(last), 1, MPI_DOUBLE_PRECISION, right, 1, &
                      u(first - 1), 1, MPI_DOUBLE_PRECISION, left, 1, &
                      MPI_COMM_WORLD, MPI_STATUS_IGNORE, ierror)
    do i = first, last
      next(i) = u(i) + alpha * ((u(i - 1) + u(i + 1)) - 2.0_real64 * u(i))
    end do
    u(first:last) = next(first:last)
  end subroutine advance

  subroutine finish()
    real(real64), allocatable :: rod(:)
    integer :: r, from, to, unit, status
    if (rank /= 0) then
      if (last >= first) call MPI_Send(u(first), last - first + 1, MPI_DOUBLE_PRECISION, 0, 2, &
                                       MPI_COMM_WORLD, ierror)
      return
    end if
    allocate (rod(cells))
    rod(first:last) = u(first:last)
    do r = 1, min(ranks, cells) - 1
      call part_of(r, from, to)
      call MPI_Recv(rod(from), to - from + 1, MPI_DOUBLE_PRECISION, r, 2, &
                    MPI_COMM_WORLD, MPI_STATUS_IGNORE, ierror)
    end do
    open (newunit=unit, file=trim(output), access="stream", form="unformatted", &
          status="replace", iostat=status)
    if (status /= 0) call fail("cannot write "//trim(output))
    write (unit) rod
    close (unit)
    write (*, '(a,i0,a,i0,a,i0,a,f0.6,a,z16.16)') "heat-fortran: ", cells, " cells, ", steps, &
      " steps, ", ranks, " ranks, mean ", sum(rod) / cells, ", digest ", digest(rod)
  end subroutine finish

  ! FNV-1a over the 64-bit words of the rod; multiplication modulo 2**64 in two
  ! halves, because Fortran leaves the overflow of integers undefined.
  function digest(rod) result(hash)
    real(real64), intent(in) :: rod(:)
    integer(int64) :: hash
    integer(int64), parameter :: low = int(z'FFFFFFFF', int64)
    integer(int64) :: a, b, carry, middle
    integer :: i
    hash = ior(ishft(int(z'CBF29CE4', int64), 32), int(z'84222325', int64))
    do i = 1, size(rod)
      hash = ieor(hash, transfer(rod(i), hash))
      ! The prime is 2**40 + 435.
      a = iand(hash, low)
      b = ishft(hash, -32)
      carry = a * 435_int64
      middle = iand(ishft(carry, -32) + b * 435_int64 + ishft(iand(a, int(z'FFFFFF', int64)), 8), low)
      hash = ior(ishft(middle, 32), iand(carry, low))
    end do
  end function digest

  subroutine check(what)
    character(len=*), intent(in) :: what
    if (code < 0) call fail(what//": "//outlive_strerror(code))
  end subroutine check

  subroutine fail(what)
    character(len=*), intent(in) :: what
    write (error_unit, '(2a)') "heat-fortran: ", what
    call MPI_Abort(MPI_COMM_WORLD, 1, ierror)
    stop 1
  end subroutine fail

end program heat
