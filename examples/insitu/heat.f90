! Heat in a rod of 32 points, from Fortran: streams 20 steps, and asks the model "rod" about the last one.
!   gfortran lockstep_stage.f90 heat.f90 -llockstep-stage
program heat
  use lockstep_stage
  implicit none
  integer, parameter :: n = 32
  type(c_ptr) :: stream, model, memory
  type(ls_stage_options) :: how
  real(c_float), pointer :: field(:)
  real(c_float) :: rod(n), answer(1)
  integer :: i
  integer(c_int64_t) :: step, publication

  how%policy = LS_STAGE_LOSSLESS
  how%k = 4
  call check(ls_stage_open("rod" // c_null_char, 0, 1, LS_STAGE_F32, 1, [int(n, c_int64_t)], how, 30d0, stream))
  rod = [(merge(1.0, 0.0, i > n / 4 .and. i <= n / 2), i = 1, n)]
  do step = 0, 19
    rod = rod + 0.25 * (cshift(rod, 1) - 2 * rod + cshift(rod, -1))
    call check(ls_stage_reserve(stream, step, 30d0, memory))
    call c_f_pointer(memory, field, [n])
    field = rod
    call check(ls_stage_commit(stream))
  end do
  call check(ls_infer_open("rod" // c_null_char, 30d0, model))
  publication = ls_infer_refresh(model)
  call check(ls_infer(model, rod, 1, answer))
  print '(i0, 1x, f0.6, 1x, f0.6)', publication, answer(1), sum(rod)
  call check(ls_infer_close(model))
  call check(ls_stage_close(stream, 30d0))
contains
  subroutine check(result)
    integer(c_int), intent(in) :: result
    if (result /= LS_STAGE_OK) error stop 2
  end subroutine
end program
