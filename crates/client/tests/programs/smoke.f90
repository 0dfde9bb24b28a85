! As smoke.c, in Fortran 2008.
program smoke
    use, intrinsic :: iso_fortran_env, only: int32, int64, real32, real64, error_unit
    use outlive
    implicit none
    type(outlive_job) :: job
    type(outlive_status_t) :: status
    type(outlive_level_t) :: level
    real(real64), allocatable, target :: field(:), empty(:)
    real(real32), target :: matrix(10, 20), cube(2, 3, 4), four(2, 2, 2, 2)
    complex(real64), target :: z(5)
    complex(real32), target :: w
    integer(int32), target :: n(3)
    integer(int64), target :: step
    logical, target :: flags(4)
    integer(int64) :: restored, bytes
    integer :: ierr
    logical :: first, second
    character(len=16) :: mode
    character(len=300) :: line

    mode = "alone"
    if (command_argument_count() > 0) call get_command_argument(1, mode)
    first = mode == "first"
    second = mode == "second"
    allocate (field(20000), empty(0))
    field = 0
    matrix = 0
    cube = 1
    four = 2
    z = 0
    w = 0
    n = 0
    flags = .false.
    call outlive_open(job, ierr, timeout_ms=10000)
    call check(ierr == OUTLIVE_OK, "open")
    call outlive_protect(job, "field", field, ierr)
    call check(ierr == OUTLIVE_OK, "protect field")
    call outlive_protect(job, "empty", empty, ierr)
    call check(ierr == OUTLIVE_OK, "protect empty")
    ! A section with gaps would be a copy that is gone when the call returns.
    call outlive_protect(job, "gaps", field(1:100:2), ierr)
    call check(ierr == -OUTLIVE_E_INVALID_ARGUMENT, "protect gaps")
    call outlive_protect(job, "gaps", matrix(2:3, :), ierr)
    call check(ierr == -OUTLIVE_E_INVALID_ARGUMENT, "protect gaps")
    call outlive_protect(job, "columns", cube(:, :, 2:3), ierr)
    call check(ierr == OUTLIVE_OK, "protect whole columns")
    call outlive_unprotect(job, "columns", ierr)
    call outlive_protect(job, "matrix", matrix, ierr)
    call outlive_protect(job, "cube", cube, ierr)
    call outlive_protect(job, "four", four, ierr)
    call outlive_protect(job, "z", z, ierr)
    call outlive_protect(job, "w", w, ierr)
    call outlive_protect(job, "n", n, ierr)
    call outlive_protect(job, "flags", flags, ierr)
    call outlive_protect(job, "step", step, ierr)
    call check(ierr == OUTLIVE_OK, "protect step")
    call outlive_describe(job, "n", OUTLIVE_FLOAT64, ierr)
    call check(ierr == -OUTLIVE_E_INVALID_ARGUMENT, "describe 12 bytes as numbers of 8")
    call outlive_describe(job, "z", OUTLIVE_FLOAT64, ierr)
    call check(ierr == OUTLIVE_OK, "describe")
    call outlive_describe(job, "missing", OUTLIVE_FLOAT32, ierr)
    call check(ierr == -OUTLIVE_E_REGION_MISSING, "describe what is missing")
    call outlive_unprotect(job, "missing", ierr)
    call check(ierr == -OUTLIVE_E_REGION_MISSING, "unprotect")
    call check(outlive_strerror(ierr) == "region missing from the checkpoint", "strerror")
    call outlive_last_error(job, line)
    call check(line(1:6) == "OL-103", "last error")

    bytes = 0
    call outlive_query(job, "field", bytes, ierr)
    call check(bytes == merge(160000_int64, 0_int64, second), "query")
    restored = -1
    step = 0
    call outlive_restore(job, restored, ierr)
    if (second) then
        call check(ierr == OUTLIVE_RESTORED .and. restored == 3 .and. step == 3, "restore")
        call check(all(field == 3) .and. all(matrix == 3) .and. all(flags), "content")
        call check(all(z == (3, 1)) .and. w == (1, 3) .and. all(n == 3), "content")
    else
        call check(ierr == OUTLIVE_FRESH .and. restored == -1, "fresh")
    end if
    do while (step < 6)
        field = real(step, real64)
        matrix = real(step, real32)
        z = cmplx(step, 1, real64)
        w = cmplx(1, step, real32)
        n = int(step, int32)
        flags = .true.
        call outlive_checkpoint(job, step, ierr)
        call check(ierr == merge(OUTLIVE_TAKEN, OUTLIVE_SKIPPED, first .and. step == 3), "checkpoint")
        if (ierr == OUTLIVE_TAKEN) then
            call outlive_wait(job, step, OUTLIVE_SURVIVES_PROCESS, ierr)
            call check(ierr == OUTLIVE_OK, "wait")
            call outlive_level(job, 1, level, ierr)
            call check(ierr == OUTLIVE_OK .and. level%name == "memory", "level")
            call check(level%survives == OUTLIVE_SURVIVES_PROCESS .and. level%version == 3, "level")
            call outlive_level(job, 2, level, ierr)
            call check(ierr == OUTLIVE_OK .and. level%name == "xor:4", "level")
            call check(level%survives == OUTLIVE_SURVIVES_DOMAIN .and. level%version == -1, "level")
        end if
        step = step + 1
    end do
    call check(.not. outlive_wanted(job, 7_int64), "wanted")
    call outlive_checkpoint(job, 2_int64, ierr)
    call check(ierr == -OUTLIVE_E_VERSION_ORDER, "order")
    call outlive_status(job, status, ierr)
    call check(ierr == OUTLIVE_OK .and. status%regions == 10, "status")
    call check(status%taken == merge(1, 0, first), "taken")
    call check(status%version_surviving(OUTLIVE_SURVIVES_PROCESS) == merge(3, -1, first), "surviving")
    call check(status%version_surviving(OUTLIVE_SURVIVES_ALL_NODES) == -1, "surviving")
    call outlive_level(job, 3, level, ierr)
    call check(ierr == -OUTLIVE_E_NOT_FOUND, "the last level")
    call outlive_close(job, ierr)
    call check(ierr == OUTLIVE_OK, "close")

contains
    subroutine check(condition, what)
        logical, intent(in) :: condition
        character(len=*), intent(in) :: what
        if (condition) return
        call outlive_last_error(job, line)
        write (error_unit, '(a,i0,2a)') "failed: " // what // ", ierr ", ierr, ": ", trim(line)
        error stop 1
    end subroutine check
end program smoke
