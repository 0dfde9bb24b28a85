! The calls of the module outlive as nothing at all: heat.F90 built with this
! module is the program as it was before Outlive.
module outlive
  use, intrinsic :: iso_fortran_env, only: real64, int64
  implicit none
  private
  public :: outlive_job, outlive_open, outlive_protect, outlive_restore
  public :: outlive_checkpoint, outlive_close, outlive_strerror

  type :: outlive_job
    integer :: unused = 0
  end type outlive_job

contains

  subroutine outlive_open(job, code)
    type(outlive_job), intent(out) :: job
    integer, intent(out) :: code
    job%unused = 0
    code = 0
  end subroutine outlive_open

  subroutine outlive_protect(job, name, data, code)
    type(outlive_job), intent(inout) :: job
    character(len=*), intent(in) :: name
    real(real64), intent(inout), target :: data(:)
    integer, intent(out) :: code
    job%unused = len(name) + size(data)
    code = 0
  end subroutine outlive_protect

  subroutine outlive_restore(job, version, code)
    type(outlive_job), intent(inout) :: job
    integer(int64), intent(inout) :: version
    integer, intent(out) :: code
    job%unused = 0
    version = version
    code = 3
  end subroutine outlive_restore

  subroutine outlive_checkpoint(job, version, code)
    type(outlive_job), intent(inout) :: job
    integer(int64), intent(in) :: version
    integer, intent(out) :: code
    job%unused = merge(1, 0, version > 0)
    code = 0
  end subroutine outlive_checkpoint

  subroutine outlive_close(job, code)
    type(outlive_job), intent(inout) :: job
    integer, intent(out) :: code
    job%unused = 0
    code = 0
  end subroutine outlive_close

  function outlive_strerror(code) result(text)
    integer, intent(in) :: code
    character(len=:), allocatable :: text
    text = merge("success", "failure", code >= 0)
  end function outlive_strerror

end module outlive
