! stage.h and infer.h for Fortran. A rank's part of shape [n1, n2, ...] in C is an array (..., n2, n1) here: the same bytes.
module lockstep_stage
  use, intrinsic :: iso_c_binding
  implicit none

  integer(c_int), parameter :: LS_STAGE_OK = 0, LS_STAGE_REFUSED = 1, LS_STAGE_TIMEOUT = 2, LS_STAGE_ORDER = 3
  integer(c_int), parameter :: LS_STAGE_F32 = 1, LS_STAGE_F64 = 2, LS_STAGE_I32 = 3, LS_STAGE_I64 = 4
  integer(c_int32_t), parameter :: LS_STAGE_LOSSLESS = 1, LS_STAGE_LATEST = 2, LS_STAGE_RESERVOIR = 3, LS_STAGE_REPLAY = 4

  type, bind(c) :: ls_stage_options
    integer(c_int32_t) :: policy
    integer(c_int32_t) :: k
    integer(c_int32_t) :: spare = 0
    integer(c_int32_t) :: readers = 0
    integer(c_int64_t) :: seed = 0
    type(c_ptr) :: spill = c_null_ptr
  end type

  interface
    integer(c_int) function ls_stage_open(name, rank, ranks, dtype, ndim, shape, options, timeout_s, stream) bind(c)
      import
      character(kind=c_char), intent(in) :: name(*)
      integer(c_int), value :: rank, ranks, dtype, ndim
      integer(c_int64_t), intent(in) :: shape(*)
      type(ls_stage_options), intent(in) :: options
      real(c_double), value :: timeout_s
      type(c_ptr), intent(out) :: stream
    end function
    integer(c_int) function ls_stage_reserve(stream, step, timeout_s, memory) bind(c)
      import
      type(c_ptr), value :: stream
      integer(c_int64_t), value :: step
      real(c_double), value :: timeout_s
      type(c_ptr), intent(out) :: memory
    end function
    integer(c_int) function ls_stage_commit(stream) bind(c)
      import
      type(c_ptr), value :: stream
    end function
    integer(c_int) function ls_stage_close(stream, linger_s) bind(c)
      import
      type(c_ptr), value :: stream
      real(c_double), value :: linger_s
    end function
    integer(c_int) function ls_infer_open(name, timeout_s, model) bind(c)
      import
      character(kind=c_char), intent(in) :: name(*)
      real(c_double), value :: timeout_s
      type(c_ptr), intent(out) :: model
    end function
    integer(c_int64_t) function ls_infer_refresh(model) bind(c)
      import
      type(c_ptr), value :: model
    end function
    integer(c_int) function ls_infer(model, input, rows, output) bind(c)
      import
      type(c_ptr), value :: model
      real(c_float), intent(in) :: input(*)
      integer(c_int), value :: rows
      real(c_float), intent(out) :: output(*)
    end function
    integer(c_int) function ls_infer_close(model) bind(c)
      import
      type(c_ptr), value :: model
    end function
  end interface
end module
