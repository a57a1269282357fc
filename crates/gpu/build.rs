//! Compiles the kernels: for the emulator by a C++ compiler.

fn main() {
    println!("cargo::rerun-if-changed=kernels");
    #[cfg(feature = "emulator")]
    emulator();
}

#[cfg(feature = "emulator")]
fn emulator() {
    let mut build = cc::Build::new();
    build.cpp(true).std("c++17").warnings(true).extra_warnings(true);
    // A contraction to fused multiply-adds would change the bits. The kernels are slow without
    // optimization, and they have no debugger.
    build.flag("-ffp-contract=off").flag("-Wno-unknown-pragmas").opt_level(2).debug(false);
    build.flag("-march=x86-64-v3");
    build.file("kernels/emulator.cpp");
    build.compile("nsbridge_gpu_emulator");
}
