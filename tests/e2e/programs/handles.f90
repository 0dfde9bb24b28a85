! As `misuse.py twice` and `fork`, in Fortran: a second handle in one process, one after the
! first was closed, and a forked child that opens anew.
program handles
    use, intrinsic :: iso_c_binding, only: c_int
    use outlive
    implicit none
    interface
        function c_fork() result(pid) bind(c, name="fork")
            import :: c_int
            integer(c_int) :: pid
        end function c_fork
        function c_getpid() result(pid) bind(c, name="getpid")
            import :: c_int
            integer(c_int) :: pid
        end function c_getpid
        function c_wait(status) result(pid) bind(c, name="wait")
            import :: c_int
            integer(c_int) :: status, pid
        end function c_wait
        subroutine c_exit(status) bind(c, name="_exit")
            import :: c_int
            integer(c_int), value :: status
        end subroutine c_exit
    end interface
    type(outlive_job) :: first, second, third
    integer :: ierr
    integer(c_int) :: status
    character(len=8) :: what

    call get_command_argument(1, what)
    if (what == "fork") then
        call open_and_say("parent", first)
        if (c_fork() == 0) then
            call open_and_say("child", second)
            call c_exit(0)
        end if
        if (c_wait(status) < 0) stop 1
        call outlive_close(first, ierr)
    else
        call open_and_say("first", first)
        call open_and_say("second", second)
        call outlive_close(first, ierr)
        call open_and_say("third", third)
        call outlive_close(third, ierr)
    end if

contains

    subroutine open_and_say(name, job)
        character(len=*), intent(in) :: name
        type(outlive_job), intent(inout) :: job
        character(len=600) :: why
        call outlive_open(job, ierr)
        why = ""
        if (ierr /= OUTLIVE_OK) call outlive_last_error(job, why)
        write (*, "(a, 1x, a, 1x, i0, 1x, i0, 1x, a)") "open", name, ierr, c_getpid(), trim(why)
        flush (6)
    end subroutine open_and_say
end program handles
