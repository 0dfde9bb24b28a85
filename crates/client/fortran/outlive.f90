! SPDX-License-Identifier: Apache-2.0 OR MIT
!
! Outlive for Fortran 2008: see outlive.h for what each call promises.
!
!     use outlive
!     type(outlive_job) :: job
!     real(real64), allocatable, target :: field(:,:)
!     integer(int64) :: step
!     integer :: ierr
!     call outlive_open(job, ierr)
!     call outlive_protect(job, "field", field, ierr)
!     step = 0
!     call outlive_restore(job, step, ierr)
!     do while (step < steps)
!         call outlive_checkpoint(job, step, ierr)
!         call compute(field)
!         step = step + 1
!     end do
!     call outlive_close(job, ierr)
!
! `ierr` is what the C function returns: OUTLIVE_OK, a positive information, or the
! negative of an OUTLIVE_E_ number.
!
! What is protected must have the TARGET attribute in the program (so that the
! compiler knows that a restore changes it), must be contiguous (a section with gaps is
! refused with error 100), and must be protected again, under the same name, after it was
! allocated anew.
!
! The specific procedures of outlive_protect differ in type and rank only.
module outlive
    use, intrinsic :: iso_c_binding
    use, intrinsic :: iso_fortran_env, only: int32, int64, real32, real64
    implicit none
    private
    integer, parameter, public :: OUTLIVE_OK = 0
    integer, parameter, public :: OUTLIVE_TAKEN = 1
    integer, parameter, public :: OUTLIVE_SKIPPED = 2
    integer, parameter, public :: OUTLIVE_FRESH = 3
    integer, parameter, public :: OUTLIVE_RESTORED = 4
    integer, parameter, public :: OUTLIVE_E_INVALID_ARGUMENT = 100
    integer, parameter, public :: OUTLIVE_E_NOT_OPEN = 101
    integer, parameter, public :: OUTLIVE_E_VERSION_ORDER = 102
    integer, parameter, public :: OUTLIVE_E_REGION_MISSING = 103
    integer, parameter, public :: OUTLIVE_E_REGION_SIZE = 104
    integer, parameter, public :: OUTLIVE_E_REGION_UNCLAIMED = 105
    integer, parameter, public :: OUTLIVE_E_TIMED_OUT = 106
    integer, parameter, public :: OUTLIVE_E_ROUTE_MISSING = 107
    integer, parameter, public :: OUTLIVE_E_UNPROTECTED = 108
    integer, parameter, public :: OUTLIVE_E_UNSERIALIZABLE = 109
    integer, parameter, public :: OUTLIVE_E_UNSUPPORTED = 110
    integer, parameter, public :: OUTLIVE_E_RANK_UNKNOWN = 200
    integer, parameter, public :: OUTLIVE_E_RANK_COUNT = 201
    integer, parameter, public :: OUTLIVE_E_RANK_LOST = 202
    integer, parameter, public :: OUTLIVE_E_RANK_HUNG = 203
    integer, parameter, public :: OUTLIVE_E_SHARED_MEMORY = 204
    integer, parameter, public :: OUTLIVE_E_REGION_UNCHANGED = 205
    integer, parameter, public :: OUTLIVE_E_REGION_NOT_FINITE = 206
    integer, parameter, public :: OUTLIVE_E_REGION_TORN = 207
    integer, parameter, public :: OUTLIVE_E_AGENT_UNREACHABLE = 300
    integer, parameter, public :: OUTLIVE_E_AGENT_TIMEOUT = 301
    integer, parameter, public :: OUTLIVE_E_MEMORY_BUDGET = 302
    integer, parameter, public :: OUTLIVE_E_NODE_LOST = 303
    integer, parameter, public :: OUTLIVE_E_NODE_SILENT = 304
    integer, parameter, public :: OUTLIVE_E_PEER_VERSION = 305
    integer, parameter, public :: OUTLIVE_E_KEY_MISMATCH = 306
    integer, parameter, public :: OUTLIVE_E_ADDRESS_IN_USE = 307
    integer, parameter, public :: OUTLIVE_E_NETWORK = 308
    integer, parameter, public :: OUTLIVE_E_KERNEL_UNREADY = 309
    integer, parameter, public :: OUTLIVE_E_SERVER_LOST = 310
    integer, parameter, public :: OUTLIVE_E_MACHINE_SHORT = 311
    integer, parameter, public :: OUTLIVE_E_IO = 400
    integer, parameter, public :: OUTLIVE_E_NO_SPACE = 401
    integer, parameter, public :: OUTLIVE_E_PERMISSION = 402
    integer, parameter, public :: OUTLIVE_E_CORRUPT = 403
    integer, parameter, public :: OUTLIVE_E_NOT_FOUND = 404
    integer, parameter, public :: OUTLIVE_E_TRUNCATED = 405
    integer, parameter, public :: OUTLIVE_E_FORMAT_UNKNOWN = 406
    integer, parameter, public :: OUTLIVE_E_IMAGE_FOREIGN = 407
    integer, parameter, public :: OUTLIVE_E_STORE_UNFIT = 408
    integer, parameter, public :: OUTLIVE_E_INCOMPLETE = 409
    integer, parameter, public :: OUTLIVE_E_NO_VALID_CHECKPOINT = 500
    integer, parameter, public :: OUTLIVE_E_COMMIT_ABORTED = 501
    integer, parameter, public :: OUTLIVE_E_JOB_BUSY = 502
    integer, parameter, public :: OUTLIVE_E_RESTARTS_EXHAUSTED = 503
    integer, parameter, public :: OUTLIVE_E_NO_SPARE = 504
    integer, parameter, public :: OUTLIVE_E_COMMAND_FAILED = 505
    integer, parameter, public :: OUTLIVE_E_DIES_AT_ONCE = 506
    integer, parameter, public :: OUTLIVE_E_NO_QUORUM = 507
    integer, parameter, public :: OUTLIVE_E_NO_PROGRESS = 508
    integer, parameter, public :: OUTLIVE_E_NOT_JOINED = 509
    integer, parameter, public :: OUTLIVE_E_CONFIG = 600
    integer, parameter, public :: OUTLIVE_E_INTERNAL = 900
    !> What a version is to survive; each includes those before it.
    integer, parameter, public :: OUTLIVE_SURVIVES_PROCESS = 1
    integer, parameter, public :: OUTLIVE_SURVIVES_NODE_CRASH = 2
    integer, parameter, public :: OUTLIVE_SURVIVES_NODE_LOSS = 3
    integer, parameter, public :: OUTLIVE_SURVIVES_DOMAIN = 4
    integer, parameter, public :: OUTLIVE_SURVIVES_ALL_NODES = 5
    !> What numbers a region consists of; of complex numbers: their parts.
    integer, parameter, public :: OUTLIVE_FLOAT16 = 1
    integer, parameter, public :: OUTLIVE_BFLOAT16 = 2
    integer, parameter, public :: OUTLIVE_FLOAT32 = 3
    integer, parameter, public :: OUTLIVE_FLOAT64 = 4

    !> A rank's handle on its job.
    type, public :: outlive_job
        private
        type(c_ptr) :: handle = c_null_ptr
    end type outlive_job

    type, bind(C) :: options_t
        integer(c_size_t) :: bytes
        integer(c_int32_t) :: rank, ranks
        integer(c_int32_t) :: timeout_ms, flags
    end type options_t

    !> What outlive_status tells; versions are -1 if there is none.
    type, public, bind(C) :: outlive_status_t
        integer(c_size_t) :: bytes_of_this
        integer(c_int32_t) :: is_protected
        integer(c_int32_t) :: rank, ranks, node
        integer(c_int32_t) :: incarnation
        integer(c_int64_t) :: regions
        integer(c_int64_t) :: bytes
        integer(c_int64_t) :: taken
        integer(c_int64_t) :: failed
        integer(c_int64_t) :: blocked_ns
        integer(c_int64_t) :: version_taken
        !> By OUTLIVE_SURVIVES_ number: the newest version that survives at least this.
        integer(c_int64_t) :: version_surviving(5)
        integer(c_int64_t) :: version_restored
    end type outlive_status_t

    type, bind(C) :: level_t
        integer(c_size_t) :: bytes_of_this
        character(kind=c_char) :: name(16)
        integer(c_int32_t) :: survives
        integer(c_int64_t) :: version
    end type level_t

    !> What outlive_level tells: the level's name as --levels has it, the most that its
    !> versions survive, and its newest version, -1 if there is none.
    type, public :: outlive_level_t
        character(len=16) :: name = ""
        integer :: survives = 0
        integer(int64) :: version = -1
    end type outlive_level_t

    public :: outlive_open, outlive_protect, outlive_protect_address, outlive_describe
    public :: outlive_unprotect
    public :: outlive_restore, outlive_query, outlive_checkpoint, outlive_checkpoint_now
    public :: outlive_wanted, outlive_wait, outlive_route, outlive_status, outlive_level
    public :: outlive_close, outlive_strerror, outlive_last_error

    !> Declares a scalar or an array (rank 1 to 4) under a name.
    interface outlive_protect
        module procedure protect_real32_0, protect_real32_1, protect_real32_2
        module procedure protect_real32_3, protect_real32_4, protect_real64_0
        module procedure protect_real64_1, protect_real64_2, protect_real64_3
        module procedure protect_real64_4, protect_int32_0, protect_int32_1
        module procedure protect_int32_2, protect_int32_3, protect_int32_4
        module procedure protect_int64_0, protect_int64_1, protect_int64_2
        module procedure protect_int64_3, protect_int64_4, protect_complex32_0
        module procedure protect_complex32_1, protect_complex32_2, protect_complex32_3
        module procedure protect_complex32_4, protect_complex64_0, protect_complex64_1
        module procedure protect_complex64_2, protect_complex64_3, protect_complex64_4
        module procedure protect_logical_0, protect_logical_1, protect_logical_2
        module procedure protect_logical_3, protect_logical_4
    end interface outlive_protect

    interface
        function c_open(options, job) result(told) bind(C, name="outlive_open")
            import :: c_int, c_ptr, options_t
            type(options_t), intent(in) :: options
            type(c_ptr), intent(out) :: job
            integer(c_int) :: told
        end function c_open
        function c_protect(job, name, address, bytes) result(told) bind(C, name="outlive_protect")
            import :: c_char, c_int, c_ptr, c_size_t
            type(c_ptr), value :: job, address
            character(kind=c_char), intent(in) :: name(*)
            integer(c_size_t), value :: bytes
            integer(c_int) :: told
        end function c_protect
        function c_describe(job, name, element) result(told) bind(C, name="outlive_describe")
            import :: c_char, c_int, c_ptr
            type(c_ptr), value :: job
            character(kind=c_char), intent(in) :: name(*)
            integer(c_int), value :: element
            integer(c_int) :: told
        end function c_describe
        function c_unprotect(job, name) result(told) bind(C, name="outlive_unprotect")
            import :: c_char, c_int, c_ptr
            type(c_ptr), value :: job
            character(kind=c_char), intent(in) :: name(*)
            integer(c_int) :: told
        end function c_unprotect
        function c_restore(job, version) result(told) bind(C, name="outlive_restore")
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), value :: job
            integer(c_int64_t), intent(inout) :: version
            integer(c_int) :: told
        end function c_restore
        function c_query(job, name, bytes) result(told) bind(C, name="outlive_query")
            import :: c_char, c_int, c_ptr, c_size_t
            type(c_ptr), value :: job
            character(kind=c_char), intent(in) :: name(*)
            integer(c_size_t), intent(inout) :: bytes
            integer(c_int) :: told
        end function c_query
        function c_checkpoint(job, version) result(told) bind(C, name="outlive_checkpoint")
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), value :: job
            integer(c_int64_t), value :: version
            integer(c_int) :: told
        end function c_checkpoint
        function c_checkpoint_now(job, version) result(told) bind(C, name="outlive_checkpoint_now")
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), value :: job
            integer(c_int64_t), value :: version
            integer(c_int) :: told
        end function c_checkpoint_now
        function c_wanted(job, version) result(told) bind(C, name="outlive_wanted")
            import :: c_int, c_int64_t, c_ptr
            type(c_ptr), value :: job
            integer(c_int64_t), value :: version
            integer(c_int) :: told
        end function c_wanted
        function c_wait(job, version, survives, timeout_ms) result(told) bind(C, name="outlive_wait")
            import :: c_int, c_int32_t, c_int64_t, c_ptr
            type(c_ptr), value :: job
            integer(c_int64_t), value :: version
            integer(c_int), value :: survives
            integer(c_int32_t), value :: timeout_ms
            integer(c_int) :: told
        end function c_wait
        function c_route(job, version, name, path, capacity) result(told) bind(C, name="outlive_route")
            import :: c_char, c_int, c_int64_t, c_ptr, c_size_t
            type(c_ptr), value :: job
            integer(c_int64_t), value :: version
            character(kind=c_char), intent(in) :: name(*)
            character(kind=c_char), intent(inout) :: path(*)
            integer(c_size_t), value :: capacity
            integer(c_int) :: told
        end function c_route
        function c_status(job, status) result(told) bind(C, name="outlive_status")
            import :: c_int, c_ptr, outlive_status_t
            type(c_ptr), value :: job
            type(outlive_status_t), intent(inout) :: status
            integer(c_int) :: told
        end function c_status
        function c_level(job, index, level) result(told) bind(C, name="outlive_level")
            import :: c_int, c_int32_t, c_ptr, level_t
            type(c_ptr), value :: job
            integer(c_int32_t), value :: index
            type(level_t), intent(inout) :: level
            integer(c_int) :: told
        end function c_level
        function c_close(job) result(told) bind(C, name="outlive_close")
            import :: c_int, c_ptr
            type(c_ptr), intent(inout) :: job
            integer(c_int) :: told
        end function c_close
        function c_strerror(code) result(text) bind(C, name="outlive_strerror")
            import :: c_int, c_ptr
            integer(c_int), value :: code
            type(c_ptr) :: text
        end function c_strerror
        function c_last_error(job, text, capacity) result(length) bind(C, name="outlive_last_error")
            import :: c_char, c_ptr, c_size_t
            type(c_ptr), value :: job
            character(kind=c_char), intent(inout) :: text(*)
            integer(c_size_t), value :: capacity
            integer(c_size_t) :: length
        end function c_last_error
        function c_strlen(text) result(length) bind(C, name="strlen")
            import :: c_ptr, c_size_t
            type(c_ptr), value :: text
            integer(c_size_t) :: length
        end function c_strlen
    end interface

contains

    !> Joins the job; what is not given is found in the launcher's environment.
    subroutine outlive_open(job, ierr, rank, ranks, timeout_ms)
        type(outlive_job), intent(out) :: job
        integer, intent(out) :: ierr
        integer, intent(in), optional :: rank, ranks, timeout_ms
        type(options_t) :: options
        options = options_t(0_c_size_t, -1_c_int32_t, 0_c_int32_t, 0_c_int32_t, 0_c_int32_t)
        options%bytes = c_sizeof(options)
        if (present(rank)) options%rank = int(rank, c_int32_t)
        if (present(ranks)) options%ranks = int(ranks, c_int32_t)
        if (present(timeout_ms)) options%timeout_ms = int(timeout_ms, c_int32_t)
        ierr = int(c_open(options, job%handle))
    end subroutine outlive_open

    !> Declares `bytes` bytes at `address`, for what outlive_protect does not know.
    subroutine outlive_protect_address(job, name, address, bytes, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        type(c_ptr), intent(in) :: address
        integer(int64), intent(in) :: bytes
        integer, intent(out) :: ierr
        ierr = int(c_protect(job%handle, zero_ended(name), address, int(bytes, c_size_t)))
    end subroutine outlive_protect_address

    !> Says what numbers a region has that was protected by its address; of the arrays that
    !> outlive_protect knows it is known.
    subroutine outlive_describe(job, name, element, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        integer, intent(in) :: element
        integer, intent(out) :: ierr
        ierr = int(c_describe(job%handle, zero_ended(name), int(element, c_int)))
    end subroutine outlive_describe

    subroutine outlive_unprotect(job, name, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        integer, intent(out) :: ierr
        ierr = int(c_unprotect(job%handle, zero_ended(name)))
    end subroutine outlive_unprotect

    !> OUTLIVE_RESTORED and the version, or OUTLIVE_FRESH and `version` as it was.
    subroutine outlive_restore(job, version, ierr)
        type(outlive_job), intent(in) :: job
        integer(int64), intent(inout) :: version
        integer, intent(out) :: ierr
        ierr = int(c_restore(job%handle, version))
    end subroutine outlive_restore

    subroutine outlive_query(job, name, bytes, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        integer(int64), intent(inout) :: bytes
        integer, intent(out) :: ierr
        integer(c_size_t) :: found
        found = int(bytes, c_size_t)
        ierr = int(c_query(job%handle, zero_ended(name), found))
        bytes = int(found, int64)
    end subroutine outlive_query

    !> OUTLIVE_SKIPPED, OUTLIVE_TAKEN, or why a wanted capture failed.
    subroutine outlive_checkpoint(job, version, ierr)
        type(outlive_job), intent(in) :: job
        integer(int64), intent(in) :: version
        integer, intent(out) :: ierr
        ierr = int(c_checkpoint(job%handle, version))
    end subroutine outlive_checkpoint

    subroutine outlive_checkpoint_now(job, version, ierr)
        type(outlive_job), intent(in) :: job
        integer(int64), intent(in) :: version
        integer, intent(out) :: ierr
        ierr = int(c_checkpoint_now(job%handle, version))
    end subroutine outlive_checkpoint_now

    function outlive_wanted(job, version) result(wanted)
        type(outlive_job), intent(in) :: job
        integer(int64), intent(in) :: version
        logical :: wanted
        wanted = c_wanted(job%handle, version) == 1
    end function outlive_wanted

    !> Waits until `version` survives this, an OUTLIVE_SURVIVES_ number, at most `timeout_ms`
    !> (0 or not given: the job's own bound).
    subroutine outlive_wait(job, version, survives, ierr, timeout_ms)
        type(outlive_job), intent(in) :: job
        integer(int64), intent(in) :: version
        integer, intent(in) :: survives
        integer, intent(out) :: ierr
        integer, intent(in), optional :: timeout_ms
        integer(c_int32_t) :: bound
        bound = 0
        if (present(timeout_ms)) bound = int(timeout_ms, c_int32_t)
        ierr = int(c_wait(job%handle, version, int(survives, c_int), bound))
    end subroutine outlive_wait

    !> A path for a file of `version` that the program writes by itself.
    subroutine outlive_route(job, version, name, path, ierr)
        type(outlive_job), intent(in) :: job
        integer(int64), intent(in) :: version
        character(len=*), intent(in) :: name
        character(len=*), intent(out) :: path
        integer, intent(out) :: ierr
        character(kind=c_char) :: buffer(len(path) + 1)
        buffer = c_null_char
        ierr = int(c_route(job%handle, version, zero_ended(name), buffer, size(buffer, kind=c_size_t)))
        call blank_padded(buffer, path)
    end subroutine outlive_route

    subroutine outlive_status(job, status, ierr)
        type(outlive_job), intent(in) :: job
        type(outlive_status_t), intent(inout) :: status
        integer, intent(out) :: ierr
        status%bytes_of_this = c_sizeof(status)
        ierr = int(c_status(job%handle, status))
    end subroutine outlive_status

    !> A level of the job; `nth` counts from 1, the nearest copies first. Past the last one
    !> -OUTLIVE_E_NOT_FOUND, and `level` stays as it is; a job that is not protected has none.
    subroutine outlive_level(job, nth, level, ierr)
        type(outlive_job), intent(in) :: job
        integer, intent(in) :: nth
        type(outlive_level_t), intent(inout) :: level
        integer, intent(out) :: ierr
        type(level_t) :: told
        told%bytes_of_this = c_sizeof(told)
        ierr = int(c_level(job%handle, int(nth - 1, c_int32_t), told))
        if (ierr /= OUTLIVE_OK) return
        call blank_padded(told%name, level%name)
        level%survives = int(told%survives)
        level%version = told%version
    end subroutine outlive_level

    subroutine outlive_close(job, ierr)
        type(outlive_job), intent(inout) :: job
        integer, intent(out) :: ierr
        ierr = int(c_close(job%handle))
    end subroutine outlive_close

    !> A short text for an `ierr`.
    function outlive_strerror(ierr) result(text)
        integer, intent(in) :: ierr
        character(len=:), allocatable :: text
        character(kind=c_char), pointer :: bytes(:)
        type(c_ptr) :: address
        integer :: i
        address = c_strerror(int(ierr, c_int))
        call c_f_pointer(address, bytes, [c_strlen(address)])
        allocate (character(len=size(bytes)) :: text)
        do i = 1, size(bytes)
            text(i:i) = bytes(i)
        end do
    end function outlive_strerror

    !> The last error of this handle in one line; blank if there was none.
    subroutine outlive_last_error(job, text)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(out) :: text
        character(kind=c_char) :: buffer(len(text) + 1)
        integer(c_size_t) :: length
        buffer = c_null_char
        length = c_last_error(job%handle, buffer, size(buffer, kind=c_size_t))
        if (length > 0) then
            call blank_padded(buffer, text)
        else
            text = ""
        end if
    end subroutine outlive_last_error

    !> Trailing blanks are no part of a name.
    pure function zero_ended(name) result(bytes)
        character(len=*), intent(in) :: name
        character(kind=c_char) :: bytes(len_trim(name) + 1)
        integer :: i
        do i = 1, len_trim(name)
            bytes(i) = name(i:i)
        end do
        bytes(len_trim(name) + 1) = c_null_char
    end function zero_ended

    subroutine blank_padded(bytes, text)
        character(kind=c_char), intent(in) :: bytes(:)
        character(len=*), intent(out) :: text
        integer :: i
        text = ""
        do i = 1, len(text)
            if (bytes(i) == c_null_char) exit
            text(i:i) = bytes(i)
        end do
    end subroutine blank_padded

    subroutine put(job, name, address, elements, bits, ierr, element)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        type(c_ptr), intent(in) :: address
        integer(int64), intent(in) :: elements
        integer, intent(in) :: bits
        integer, intent(out) :: ierr
        integer, intent(in), optional :: element
        call outlive_protect_address(job, name, address, elements * int(bits / 8, int64), ierr)
        if (ierr == 0 .and. present(element)) call outlive_describe(job, name, element, ierr)
    end subroutine put

    subroutine protect_real32_0(job, name, x, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        real(real32), intent(inout), target :: x
        integer, intent(out) :: ierr
        call put(job, name, c_loc(x), 1_int64, storage_size(x), ierr, OUTLIVE_FLOAT32)
    end subroutine protect_real32_0

    subroutine protect_real32_1(job, name, x, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        real(real32), intent(inout), target :: x(:)
        integer, intent(out) :: ierr
        type(c_ptr) :: address
        address = c_null_ptr
        if (size(x) > 0 .and. is_contiguous(x)) address = c_loc(x(1))
        call put(job, name, address, size(x, kind=int64), storage_size(x), ierr, OUTLIVE_FLOAT32)
    end subroutine protect_real32_1

    subroutine protect_real32_2(job, name, x, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        real(real32), intent(inout), target :: x(:,:)
        integer, intent(out) :: ierr
        type(c_ptr) :: address
        address = c_null_ptr
        if (size(x) > 0 .and. is_contiguous(x)) address = c_loc(x(1, 1))
        call put(job, name, address, size(x, kind=int64), storage_size(x), ierr, OUTLIVE_FLOAT32)
    end subroutine protect_real32_2

    subroutine protect_real32_3(job, name, x, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        real(real32), intent(inout), target :: x(:,:,:)
        integer, intent(out) :: ierr
        type(c_ptr) :: address
        address = c_null_ptr
        if (size(x) > 0 .and. is_contiguous(x)) address = c_loc(x(1, 1, 1))
        call put(job, name, address, size(x, kind=int64), storage_size(x), ierr, OUTLIVE_FLOAT32)
    end subroutine protect_real32_3

    subroutine protect_real32_4(job, name, x, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        real(real32), intent(inout), target :: x(:,:,:,:)
        integer, intent(out) :: ierr
        type(c_ptr) :: address
        address = c_null_ptr
        if (size(x) > 0 .and. is_contiguous(x)) address = c_loc(x(1, 1, 1, 1))
        call put(job, name, address, size(x, kind=int64), storage_size(x), ierr, OUTLIVE_FLOAT32)
    end subroutine protect_real32_4

    subroutine protect_real64_0(job, name, x, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        real(real64), intent(inout), target :: x
        integer, intent(out) :: ierr
        call put(job, name, c_loc(x), 1_int64, storage_size(x), ierr, OUTLIVE_FLOAT64)
    end subroutine protect_real64_0

    subroutine protect_real64_1(job, name, x, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        real(real64), intent(inout), target :: x(:)
        integer, intent(out) :: ierr
        type(c_ptr) :: address
        address = c_null_ptr
        if (size(x) > 0 .and. is_contiguous(x)) address = c_loc(x(1))
        call put(job, name, address, size(x, kind=int64), storage_size(x), ierr, OUTLIVE_FLOAT64)
    end subroutine protect_real64_1

    subroutine protect_real64_2(job, name, x, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        real(real64), intent(inout), target :: x(:,:)
        integer, intent(out) :: ierr
        type(c_ptr) :: address
        address = c_null_ptr
        if (size(x) > 0 .and. is_contiguous(x)) address = c_loc(x(1, 1))
        call put(job, name, address, size(x, kind=int64), storage_size(x), ierr, OUTLIVE_FLOAT64)
    end subroutine protect_real64_2

    subroutine protect_real64_3(job, name, x, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        real(real64), intent(inout), target :: x(:,:,:)
        integer, intent(out) :: ierr
        type(c_ptr) :: address
        address = c_null_ptr
        if (size(x) > 0 .and. is_contiguous(x)) address = c_loc(x(1, 1, 1))
        call put(job, name, address, size(x, kind=int64), storage_size(x), ierr, OUTLIVE_FLOAT64)
    end subroutine protect_real64_3

    subroutine protect_real64_4(job, name, x, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        real(real64), intent(inout), target :: x(:,:,:,:)
        integer, intent(out) :: ierr
        type(c_ptr) :: address
        address = c_null_ptr
        if (size(x) > 0 .and. is_contiguous(x)) address = c_loc(x(1, 1, 1, 1))
        call put(job, name, address, size(x, kind=int64), storage_size(x), ierr, OUTLIVE_FLOAT64)
    end subroutine protect_real64_4

    subroutine protect_int32_0(job, name, x, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        integer(int32), intent(inout), target :: x
        integer, intent(out) :: ierr
        call put(job, name, c_loc(x), 1_int64, storage_size(x), ierr)
    end subroutine protect_int32_0

    subroutine protect_int32_1(job, name, x, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        integer(int32), intent(inout), target :: x(:)
        integer, intent(out) :: ierr
        type(c_ptr) :: address
        address = c_null_ptr
        if (size(x) > 0 .and. is_contiguous(x)) address = c_loc(x(1))
        call put(job, name, address, size(x, kind=int64), storage_size(x), ierr)
    end subroutine protect_int32_1

    subroutine protect_int32_2(job, name, x, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        integer(int32), intent(inout), target :: x(:,:)
        integer, intent(out) :: ierr
        type(c_ptr) :: address
        address = c_null_ptr
        if (size(x) > 0 .and. is_contiguous(x)) address = c_loc(x(1, 1))
        call put(job, name, address, size(x, kind=int64), storage_size(x), ierr)
    end subroutine protect_int32_2

    subroutine protect_int32_3(job, name, x, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        integer(int32), intent(inout), target :: x(:,:,:)
        integer, intent(out) :: ierr
        type(c_ptr) :: address
        address = c_null_ptr
        if (size(x) > 0 .and. is_contiguous(x)) address = c_loc(x(1, 1, 1))
        call put(job, name, address, size(x, kind=int64), storage_size(x), ierr)
    end subroutine protect_int32_3

    subroutine protect_int32_4(job, name, x, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        integer(int32), intent(inout), target :: x(:,:,:,:)
        integer, intent(out) :: ierr
        type(c_ptr) :: address
        address = c_null_ptr
        if (size(x) > 0 .and. is_contiguous(x)) address = c_loc(x(1, 1, 1, 1))
        call put(job, name, address, size(x, kind=int64), storage_size(x), ierr)
    end subroutine protect_int32_4

    subroutine protect_int64_0(job, name, x, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        integer(int64), intent(inout), target :: x
        integer, intent(out) :: ierr
        call put(job, name, c_loc(x), 1_int64, storage_size(x), ierr)
    end subroutine protect_int64_0

    subroutine protect_int64_1(job, name, x, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        integer(int64), intent(inout), target :: x(:)
        integer, intent(out) :: ierr
        type(c_ptr) :: address
        address = c_null_ptr
        if (size(x) > 0 .and. is_contiguous(x)) address = c_loc(x(1))
        call put(job, name, address, size(x, kind=int64), storage_size(x), ierr)
    end subroutine protect_int64_1

    subroutine protect_int64_2(job, name, x, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        integer(int64), intent(inout), target :: x(:,:)
        integer, intent(out) :: ierr
        type(c_ptr) :: address
        address = c_null_ptr
        if (size(x) > 0 .and. is_contiguous(x)) address = c_loc(x(1, 1))
        call put(job, name, address, size(x, kind=int64), storage_size(x), ierr)
    end subroutine protect_int64_2

    subroutine protect_int64_3(job, name, x, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        integer(int64), intent(inout), target :: x(:,:,:)
        integer, intent(out) :: ierr
        type(c_ptr) :: address
        address = c_null_ptr
        if (size(x) > 0 .and. is_contiguous(x)) address = c_loc(x(1, 1, 1))
        call put(job, name, address, size(x, kind=int64), storage_size(x), ierr)
    end subroutine protect_int64_3

    subroutine protect_int64_4(job, name, x, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        integer(int64), intent(inout), target :: x(:,:,:,:)
        integer, intent(out) :: ierr
        type(c_ptr) :: address
        address = c_null_ptr
        if (size(x) > 0 .and. is_contiguous(x)) address = c_loc(x(1, 1, 1, 1))
        call put(job, name, address, size(x, kind=int64), storage_size(x), ierr)
    end subroutine protect_int64_4

    subroutine protect_complex32_0(job, name, x, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        complex(real32), intent(inout), target :: x
        integer, intent(out) :: ierr
        call put(job, name, c_loc(x), 1_int64, storage_size(x), ierr, OUTLIVE_FLOAT32)
    end subroutine protect_complex32_0

    subroutine protect_complex32_1(job, name, x, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        complex(real32), intent(inout), target :: x(:)
        integer, intent(out) :: ierr
        type(c_ptr) :: address
        address = c_null_ptr
        if (size(x) > 0 .and. is_contiguous(x)) address = c_loc(x(1))
        call put(job, name, address, size(x, kind=int64), storage_size(x), ierr, OUTLIVE_FLOAT32)
    end subroutine protect_complex32_1

    subroutine protect_complex32_2(job, name, x, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        complex(real32), intent(inout), target :: x(:,:)
        integer, intent(out) :: ierr
        type(c_ptr) :: address
        address = c_null_ptr
        if (size(x) > 0 .and. is_contiguous(x)) address = c_loc(x(1, 1))
        call put(job, name, address, size(x, kind=int64), storage_size(x), ierr, OUTLIVE_FLOAT32)
    end subroutine protect_complex32_2

    subroutine protect_complex32_3(job, name, x, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        complex(real32), intent(inout), target :: x(:,:,:)
        integer, intent(out) :: ierr
        type(c_ptr) :: address
        address = c_null_ptr
        if (size(x) > 0 .and. is_contiguous(x)) address = c_loc(x(1, 1, 1))
        call put(job, name, address, size(x, kind=int64), storage_size(x), ierr, OUTLIVE_FLOAT32)
    end subroutine protect_complex32_3

    subroutine protect_complex32_4(job, name, x, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        complex(real32), intent(inout), target :: x(:,:,:,:)
        integer, intent(out) :: ierr
        type(c_ptr) :: address
        address = c_null_ptr
        if (size(x) > 0 .and. is_contiguous(x)) address = c_loc(x(1, 1, 1, 1))
        call put(job, name, address, size(x, kind=int64), storage_size(x), ierr, OUTLIVE_FLOAT32)
    end subroutine protect_complex32_4

    subroutine protect_complex64_0(job, name, x, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        complex(real64), intent(inout), target :: x
        integer, intent(out) :: ierr
        call put(job, name, c_loc(x), 1_int64, storage_size(x), ierr, OUTLIVE_FLOAT64)
    end subroutine protect_complex64_0

    subroutine protect_complex64_1(job, name, x, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        complex(real64), intent(inout), target :: x(:)
        integer, intent(out) :: ierr
        type(c_ptr) :: address
        address = c_null_ptr
        if (size(x) > 0 .and. is_contiguous(x)) address = c_loc(x(1))
        call put(job, name, address, size(x, kind=int64), storage_size(x), ierr, OUTLIVE_FLOAT64)
    end subroutine protect_complex64_1

    subroutine protect_complex64_2(job, name, x, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        complex(real64), intent(inout), target :: x(:,:)
        integer, intent(out) :: ierr
        type(c_ptr) :: address
        address = c_null_ptr
        if (size(x) > 0 .and. is_contiguous(x)) address = c_loc(x(1, 1))
        call put(job, name, address, size(x, kind=int64), storage_size(x), ierr, OUTLIVE_FLOAT64)
    end subroutine protect_complex64_2

    subroutine protect_complex64_3(job, name, x, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        complex(real64), intent(inout), target :: x(:,:,:)
        integer, intent(out) :: ierr
        type(c_ptr) :: address
        address = c_null_ptr
        if (size(x) > 0 .and. is_contiguous(x)) address = c_loc(x(1, 1, 1))
        call put(job, name, address, size(x, kind=int64), storage_size(x), ierr, OUTLIVE_FLOAT64)
    end subroutine protect_complex64_3

    subroutine protect_complex64_4(job, name, x, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        complex(real64), intent(inout), target :: x(:,:,:,:)
        integer, intent(out) :: ierr
        type(c_ptr) :: address
        address = c_null_ptr
        if (size(x) > 0 .and. is_contiguous(x)) address = c_loc(x(1, 1, 1, 1))
        call put(job, name, address, size(x, kind=int64), storage_size(x), ierr, OUTLIVE_FLOAT64)
    end subroutine protect_complex64_4

    subroutine protect_logical_0(job, name, x, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        logical, intent(inout), target :: x
        integer, intent(out) :: ierr
        call put(job, name, c_loc(x), 1_int64, storage_size(x), ierr)
    end subroutine protect_logical_0

    subroutine protect_logical_1(job, name, x, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        logical, intent(inout), target :: x(:)
        integer, intent(out) :: ierr
        type(c_ptr) :: address
        address = c_null_ptr
        if (size(x) > 0 .and. is_contiguous(x)) address = c_loc(x(1))
        call put(job, name, address, size(x, kind=int64), storage_size(x), ierr)
    end subroutine protect_logical_1

    subroutine protect_logical_2(job, name, x, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        logical, intent(inout), target :: x(:,:)
        integer, intent(out) :: ierr
        type(c_ptr) :: address
        address = c_null_ptr
        if (size(x) > 0 .and. is_contiguous(x)) address = c_loc(x(1, 1))
        call put(job, name, address, size(x, kind=int64), storage_size(x), ierr)
    end subroutine protect_logical_2

    subroutine protect_logical_3(job, name, x, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        logical, intent(inout), target :: x(:,:,:)
        integer, intent(out) :: ierr
        type(c_ptr) :: address
        address = c_null_ptr
        if (size(x) > 0 .and. is_contiguous(x)) address = c_loc(x(1, 1, 1))
        call put(job, name, address, size(x, kind=int64), storage_size(x), ierr)
    end subroutine protect_logical_3

    subroutine protect_logical_4(job, name, x, ierr)
        type(outlive_job), intent(in) :: job
        character(len=*), intent(in) :: name
        logical, intent(inout), target :: x(:,:,:,:)
        integer, intent(out) :: ierr
        type(c_ptr) :: address
        address = c_null_ptr
        if (size(x) > 0 .and. is_contiguous(x)) address = c_loc(x(1, 1, 1, 1))
        call put(job, name, address, size(x, kind=int64), storage_size(x), ierr)
    end subroutine protect_logical_4
end module outlive
