//! Tile registers of AMX: eight matrices of up to 16 rows of 64 bytes, whose products the processor
//! adds to another one.
//!
//! The compiler does not use these registers, and neither does any library of this process: so their
//! contents stay between the instructions here.

#![expect(unsafe_code, reason = "the instructions have no stable intrinsics")]

use std::arch::asm;
use std::marker::PhantomData;
use std::sync::OnceLock;

/// Rows of a tile register.
pub(crate) const ROWS: usize = 16;

/// Bytes of a row of a tile register.
pub(crate) const ROW_BYTES: usize = 64;

/// Number of tile registers.
const REGISTERS: usize = 8;

/// Rows, and bytes of a row, of a tile register.
pub(crate) type Shape = (usize, usize);

/// Memory format of the shapes of all tile registers.
#[repr(C, align(64))]
struct Palette {
    number: u8,
    first_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Tile registers of this thread. Until they are dropped, the thread's state is larger.
pub(crate) struct Registers(PhantomData<*mut ()>);

#[expect(
    clippy::unused_self,
    clippy::needless_pass_by_ref_mut,
    reason = "the state is the processor's"
)]
impl Registers {
    /// Gives the registers their shapes, and fills them with zeros.
    ///
    /// # Panics
    ///
    /// Panics if the machine has no AMX, or if a shape is larger than a register.
    pub(crate) fn new(shapes: [Shape; REGISTERS]) -> Self {
        assert!(is_available(), "this machine has no AMX");
        // SAFETY: the assertion above.
        unsafe { Self::assumed(shapes) }
    }

    /// # Safety
    ///
    /// The machine must have AMX, and this process the permission to use it.
    unsafe fn assumed(shapes: [Shape; REGISTERS]) -> Self {
        let mut palette = Palette {
            number: 1,
            first_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        for (at, (rows, bytes)) in shapes.into_iter().enumerate() {
            assert!(rows <= ROWS && bytes <= ROW_BYTES, "a tile register has 16 rows of 64 bytes");
            (palette.rows[at], palette.row_bytes[at]) = (rows as u8, bytes as u16);
        }
        // SAFETY: the instruction reads the palette alone, whose shapes were checked.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) &raw const palette, options(nostack, preserves_flags));
        }
        Self(PhantomData)
    }

    /// Fills a register with zeros.
    #[inline(always)]
    pub(crate) fn zero<const TO: usize>(&mut self) {
        // SAFETY: the registers have shapes, and the instruction changes nothing else.
        unsafe { asm!("tilezero tmm{}", const TO, options(nomem, nostack, preserves_flags)) }
    }

    /// Loads a register from rows `stride` bytes apart.
    ///
    /// # Safety
    ///
    /// Each row of the register's shape must be readable.
    #[inline(always)]
    pub(crate) unsafe fn load<const TO: usize>(&mut self, from: *const u8, stride: usize) {
        // SAFETY: as this function's.
        unsafe {
            asm!("tileloadd tmm{}, [{} + {}]", const TO, in(reg) from, in(reg) stride,
                options(readonly, nostack, preserves_flags));
        }
    }

    /// Stores a register to rows of 64 bytes. Rows and columns that its shape does not have are left.
    #[inline(always)]
    pub(crate) fn store<const FROM: usize, T: Stored>(&mut self, to: &mut [[T; 16]; ROWS]) {
        // SAFETY: a register is at most as large as the destination.
        unsafe {
            asm!("tilestored [{} + {}], tmm{}", in(reg) to.as_mut_ptr(), in(reg) ROW_BYTES,
                const FROM, options(nostack, preserves_flags));
        }
    }

    /// Adds the products of pairs of bf16 numbers to `SUMS`. Per number of `SUMS`: the products of the
    /// first numbers of all pairs and those of the second ones are added up in order, each sum from
    /// zero on and rounded once per product; the two sums are added up, then added to the number.
    /// Numbers below the least normal one are zeros.
    #[inline(always)]
    pub(crate) fn add_bf16<const SUMS: usize, const X: usize, const WEIGHTS: usize>(&mut self) {
        // SAFETY: the instruction changes a register alone. A mismatch of shapes faults.
        unsafe {
            asm!("tdpbf16ps tmm{}, tmm{}, tmm{}", const SUMS, const X, const WEIGHTS,
                options(nomem, nostack, preserves_flags));
        }
    }

    /// Adds the products of signed bytes, in fours, to 32-bit integers.
    #[inline(always)]
    pub(crate) fn add_bytes<const SUMS: usize, const X: usize, const WEIGHTS: usize>(&mut self) {
        // SAFETY: as above.
        unsafe {
            asm!("tdpbssd tmm{}, tmm{}, tmm{}", const SUMS, const X, const WEIGHTS,
                options(nomem, nostack, preserves_flags));
        }
    }
}

impl Drop for Registers {
    fn drop(&mut self) {
        // SAFETY: the instruction gives the registers back.
        unsafe { asm!("tilerelease", options(nomem, nostack, preserves_flags)) }
    }
}

/// Numbers of 32 bits that a register holds.
pub(crate) trait Stored: super::sealed::Sealed {}

impl super::sealed::Sealed for f32 {}
impl super::sealed::Sealed for i32 {}
impl Stored for f32 {}
impl Stored for i32 {}

/// Returns true if the machine has AMX with products of bf16 and of bytes, and the kernel lets this
/// process use it.
///
/// Some virtual machines report AMX and then fault in its instructions, so the first call tries them
/// in a child process.
pub(super) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| is_reported() && is_permitted() && works_in_a_child())
}

/// Returns true if the processor reports AMX.
fn is_reported() -> bool {
    const LEAF: u32 = 7;
    /// AMX-BF16, AMX-TILE and AMX-INT8.
    const BITS: u32 = 1 << 22 | 1 << 24 | 1 << 25;
    let (most, _) = std::arch::x86_64::__get_cpuid_max(0);
    most >= LEAF && std::arch::x86_64::__cpuid_count(LEAF, 0).edx & BITS == BITS
}

/// Asks the kernel for the permission to use the registers, for all threads of this process.
fn is_permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: usize = 0x1023;
    const TILE_DATA: usize = 18;
    // SAFETY: this call changes a permission alone.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) == 0 }
}

/// Returns true if a child process computes products, which it does not if an instruction faults.
fn works_in_a_child() -> bool {
    // SAFETY: the child computes on its stack and exits, which is allowed in a child of a process with
    // threads.
    unsafe {
        match libc::fork() {
            -1 => false,
            0 => {
                // A fault leaves no core dump.
                libc::prctl(libc::PR_SET_DUMPABLE, 0);
                libc::_exit(i32::from(!computes()))
            }
            child => {
                let mut status = 0;
                while libc::waitpid(child, &raw mut status, 0) < 0 {
                    if *libc::__errno_location() != libc::EINTR {
                        return false;
                    }
                }
                libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0
            }
        }
    }
}

/// Returns true if products of bf16 and of bytes are right. It must not allocate.
///
/// # Safety
///
/// The processor must report AMX, and the process must have the permission to use it.
unsafe fn computes() -> bool {
    // 1.0 in bf16, twice: a sum of 32 products.
    let (ones, bytes) = ([[0x3f80_3f80_u32; 16]; ROWS], [[0x03fd_03fd_u32; 16]; ROWS]);
    let (mut sums, mut counts) = ([[0.0f32; 16]; ROWS], [[0i32; 16]; ROWS]);
    // SAFETY: as this function's; all arrays are as large as a register.
    unsafe {
        let mut registers = Registers::assumed([(ROWS, ROW_BYTES); REGISTERS]);
        registers.load::<4>(ones.as_ptr().cast(), ROW_BYTES);
        registers.load::<5>(ones.as_ptr().cast(), ROW_BYTES);
        registers.add_bf16::<0, 4, 5>();
        registers.store::<0, f32>(&mut sums);
        registers.load::<4>(bytes.as_ptr().cast(), ROW_BYTES);
        registers.load::<5>(bytes.as_ptr().cast(), ROW_BYTES);
        registers.add_bytes::<1, 4, 5>();
        registers.store::<1, i32>(&mut counts);
    }
    sums == [[32.0; 16]; ROWS] && counts == [[64 * 9; 16]; ROWS]
}
