//! Compiles the kernels: for the emulator by a C++ compiler, for GPUs by CUDA's.

fn main() -> Result<(), String> {
    println!("cargo::rerun-if-changed=kernels");
    #[cfg(feature = "emulator")]
    emulator();
    #[cfg(feature = "cuda")]
    cuda()?;
    Ok(())
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

/// Writes `kernels.fatbin`: code for A100, H100 and B200, and PTX, from which the driver compiles
/// for other GPUs since Hopper.
#[cfg(feature = "cuda")]
fn cuda() -> Result<(), String> {
    use std::path::PathBuf;
    use std::process::Command;

    let homes = ["CUDA_HOME", "CUDA_PATH"];
    homes.iter().for_each(|name| println!("cargo::rerun-if-env-changed={name}"));
    let home = homes.iter().find_map(std::env::var_os).filter(|home| !home.is_empty());
    let nvcc = home.map_or("nvcc".into(), |home| PathBuf::from(home).join("bin/nvcc"));
    let out = PathBuf::from(std::env::var_os("OUT_DIR").ok_or("cargo sets OUT_DIR")?);
    let mut command = Command::new(&nvcc);
    command.args(["kernels/all.cu", "-fatbin", "-o"]).arg(out.join("kernels.fatbin"));
    for code in ["80,code=sm_80", "90a,code=sm_90a", "100a,code=sm_100a", "90,code=compute_90"] {
        command.args(["-gencode", &format!("arch=compute_{code}")]);
    }
    // The bits are those of the CPU: no contraction, no approximation, no flush to zero.
    command.args(["-fmad=false", "--prec-div=true", "--prec-sqrt=true", "-ftz=false"]);
    command.args(["-O3", "-std=c++17", "--threads", "2", "-compress-mode=size"]);
    let why = match command.status() {
        Ok(status) if status.success() => return Ok(()),
        Ok(status) => status.to_string(),
        Err(error) => error.to_string(),
    };
    Err(format!(
        "{} did not compile the kernels: {why}. `cargo xtask cuda` has this compiler where CUDA is \
         not installed",
        nvcc.display()
    ))
}
