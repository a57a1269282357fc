//! `cargo xtask cuda --check`: what CUDA's compiler made of the kernels of `crates/gpu`.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use crate::cargo::Cargo;
use crate::machine::cuda::Toolkit;
use crate::output;

/// GPUs whose code is checked: A100, H100 and B200.
const CODES: [&str; 3] = ["sm_80", "sm_90a", "sm_100a"];

/// GPUs for whose code the compiler needs so many registers that sums of segments are in memory while
/// they wait for others. They are touched once in a segment.
const WAITING_IN_MEMORY: &str = "sm_100a";

/// Most registers of a thread, with which two blocks of 256 threads run on a multiprocessor.
const REGISTERS: u32 = 128;

/// Most registers of a thread of kernels of which one block runs: the products of 128 rows.
const REGISTERS_OF_ONE: u32 = 255;

/// Instructions that the kernels with these names must have: the products of tensor cores, and loads
/// of 16 bytes.
const NEEDED: [(&str, &str); 8] = [
    ("products_q8_0_", "IMMA.16832.S8.S8"),
    ("products_q4_k_", "IMMA.16832.S8.S8"),
    ("products_q6_k_", "IMMA.16816.S8.S8"),
    ("products_brains_", "HMMA.16816.F32.BF16"),
    ("products_floats8_", "HMMA.16816.F32.BF16"),
    ("products_f32_", "LDG.E.128"),
    ("products_bf16_", "LDG.E.128"),
    ("products_f16_", "LDG.E.128"),
];

/// Loads of weights that the products of tensor cores must have: of few rows from memory, of many to
/// shared memory.
const LOADS: [&str; 2] = ["LDG.E.NA.128", "LDGSTS.E.BYPASS.128"];

/// Kernels whose source has no fused multiply-add, and no division, which is made of them.
const UNFUSED: [&str; 8] = [
    "pack_",
    "copy_page",
    "embed",
    "products_brains_8",
    "products_brains_16",
    "products_brains_32",
    "products_brains_64",
    "products_brains_128",
];

/// Compiles the kernels, and checks their resources and instructions.
///
/// # Errors
///
/// Returns an error if they do not compile or a check fails.
pub(super) fn check(toolkit: &Toolkit, cargo: &Cargo) -> Result<()> {
    output::step("the kernels");
    let fatbin = compile(cargo)?;
    for gpu in CODES {
        let dump = |what: &str| dump(toolkit.command("cuobjdump"), what, gpu, &fatbin);
        let (usage, code) = (dump("-res-usage")?, dump("-sass")?);
        let kernels = kernels(&usage, &code).with_context(|| format!("reading code for {gpu}"))?;
        let most = kernels.iter().map(|kernel| kernel.registers).max().unwrap_or_default();
        let faults = faults(&kernels, gpu);
        faults.iter().for_each(|fault| output::line(fault));
        ensure!(faults.is_empty(), "{} faults in the kernels for {gpu}", faults.len());
        let many = kernels.len();
        output::line(&format!("{many} kernels for {gpu}, with at most {most} registers a thread"));
    }
    Ok(())
}

/// Returns the file of the compiled kernels.
fn compile(cargo: &Cargo) -> Result<PathBuf> {
    let arguments = ["check", "-p", "nsbridge-gpu", "--features", "cuda"];
    let mut command = cargo.command(&arguments);
    command.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
    let output = command.output().context("starting cargo")?;
    ensure!(output.status.success(), "cargo failed; it says why above");
    let messages = output.stdout.split(|byte| *byte == b'\n');
    let mut messages = messages.filter_map(|line| serde_json::from_slice::<Value>(line).ok());
    let folder = messages.find_map(|message| {
        let ran = message["reason"] == "build-script-executed"
            && message["package_id"].as_str().is_some_and(|id| id.contains("/crates/gpu#"));
        ran.then(|| message["out_dir"].as_str().map(PathBuf::from)).flatten()
    });
    Ok(folder.context("cargo names no folder of the compiled kernels")?.join("kernels.fatbin"))
}

fn dump(mut cuobjdump: Command, what: &str, gpu: &str, fatbin: &Path) -> Result<String> {
    cuobjdump.args([what, "-arch", gpu]).arg(fatbin).stderr(Stdio::inherit());
    let output = cuobjdump.output().context("starting cuobjdump")?;
    ensure!(output.status.success(), "cuobjdump failed; it says why above");
    String::from_utf8(output.stdout).context("reading what cuobjdump says")
}

/// Compiled kernel.
#[derive(Debug, Default)]
struct Kernel<'a> {
    name: &'a str,
    registers: u32,
    /// Bytes of memory that a thread has for what does not fit in registers.
    stack: u32,
    instructions: Vec<&'a str>,
}

/// Reads what cuobjdump says of the kernels' resources and code.
fn kernels<'a>(usage: &'a str, code: &'a str) -> Result<Vec<Kernel<'a>>> {
    let mut kernels = Vec::new();
    let mut lines = usage.lines();
    while let Some(line) = lines.next() {
        let Some(name) = line.trim().strip_prefix("Function ") else { continue };
        let numbers = lines.next().unwrap_or_default();
        let number = |what: &str| {
            let mut words = numbers.split_whitespace();
            let number = words.find_map(|word| word.strip_prefix(what)?.parse::<u32>().ok());
            number.with_context(|| format!("cuobjdump does not say {what} of {name}"))
        };
        let (registers, stack) = (number("REG:")?, number("STACK:")? + number("LOCAL:")?);
        let name = name.trim_end_matches(':');
        kernels.push(Kernel { name, registers, stack, instructions: Vec::new() });
    }
    for function in code.split("Function : ").skip(1) {
        let (name, body) = function.split_once('\n').unwrap_or_default();
        let kernel = kernels.iter_mut().find(|kernel| kernel.name == name.trim());
        let kernel = kernel.with_context(|| format!("cuobjdump says nothing of {name}"))?;
        kernel.instructions.extend(body.lines().filter_map(instruction));
    }
    if kernels.is_empty() {
        bail!("there are no kernels");
    }
    Ok(kernels)
}

/// Returns the instruction of a line such as `/*0070*/  @P0 EXIT ;  /* 0x000000000000094d */`.
fn instruction(line: &str) -> Option<&str> {
    let (_, rest) = line.trim_start().strip_prefix("/*")?.split_once("*/")?;
    let mut words = rest.split_whitespace().skip_while(|word| word.starts_with('@'));
    words.next().filter(|word| word.starts_with(|first: char| first.is_ascii_uppercase()))
}

/// Returns the instructions from the first product of tensor cores to the last one.
fn products<'a>(instructions: &'a [&'a str]) -> &'a [&'a str] {
    let is_product = |own: &&str| own.starts_with("IMMA") || own.starts_with("HMMA");
    let first = instructions.iter().position(is_product).unwrap_or_default();
    let last = instructions.iter().rposition(is_product).unwrap_or_default();
    &instructions[first..last]
}

/// Returns a sentence for each check that fails.
fn faults(kernels: &[Kernel<'_>], gpu: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for kernel in kernels {
        let has = |what: &str| kernel.instructions.iter().any(|own| own.starts_with(what));
        let name = kernel.name;
        let waits = gpu == WAITING_IN_MEMORY && name.starts_with("products_");
        let own = if waits { products(&kernel.instructions) } else { &kernel.instructions };
        let in_memory = own.iter().any(|own| own.starts_with("LDL") || own.starts_with("STL"));
        if in_memory || kernel.stack > 0 && !waits {
            faults.push(format!("{name} has {} bytes of numbers in memory", kernel.stack));
        }
        let of_one = name.trim_end_matches("_gated").ends_with("_128");
        if kernel.registers > if of_one { REGISTERS_OF_ONE } else { REGISTERS } {
            faults.push(format!("{name} has {} registers a thread", kernel.registers));
        }
        for (prefix, needed) in NEEDED {
            if name.starts_with(prefix) && !has(needed) {
                faults.push(format!("{name} has no {needed}"));
            }
        }
        if has("IMMA") || has("HMMA") {
            let rows = name.trim_end_matches("_gated").rsplit('_').next();
            let many = rows.and_then(|rows| rows.parse().ok()).is_some_and(|rows: u32| rows > 16);
            let load = LOADS[usize::from(many)];
            if !has(load) {
                faults.push(format!("{name} has no {load}"));
            }
        }
        let unfused = |own: &str| name == own || own.ends_with('_') && name.starts_with(own);
        if UNFUSED.into_iter().any(unfused) && has("FFMA") {
            faults.push(format!("{name} has an FFMA, and none is written"));
        }
    }
    for prefix in NEEDED.map(|(prefix, _)| prefix).iter().chain(&UNFUSED) {
        if !kernels.iter().any(|kernel| kernel.name.starts_with(prefix)) {
            faults.push(format!("there is no kernel {prefix}"));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::{Kernel, faults, kernels};

    const USAGE: &str = "
Resource usage:
 Common:
  GLOBAL:0
 Function pack_floats:
  REG:14 STACK:0 SHARED:0 LOCAL:0 CONSTANT[0]:568 TEXTURE:0 SURFACE:0 SAMPLER:0
 Function embed:
  REG:36 STACK:24 SHARED:0 LOCAL:8 CONSTANT[0]:600 TEXTURE:0 SURFACE:0 SAMPLER:0
";
    const CODE: &str = "
\t\tFunction : embed
        /*0000*/                   LDC R1, c[0x0][0x28] ;      /* 0x00000a00ff017b82 */
                                                               /* 0x000fe20000000800 */
\t\tFunction : pack_floats
        /*0070*/               @P0 EXIT ;                      /* 0x000000000000094d */
        /*0080*/              @!P1 STG.E.U8 desc[UR4][R4.64], R0 ;  /* 0x0000000004007986 */
";

    #[test]
    fn resources_and_instructions_are_read() {
        let kernels = kernels(USAGE, CODE).unwrap();
        let [pack, embed] = &kernels[..] else { panic!("two kernels") };
        assert_eq!((pack.name, pack.registers, pack.stack), ("pack_floats", 14, 0));
        assert_eq!(pack.instructions, ["EXIT", "STG.E.U8"]);
        assert_eq!((embed.name, embed.registers, embed.stack), ("embed", 36, 32));
        assert_eq!(embed.instructions, ["LDC"]);
        assert!(super::kernels("", "").is_err() && super::kernels("", CODE).is_err());
    }

    #[test]
    fn each_fault_is_found() {
        let kernel = |name, instructions: &[&'static str]| {
            let instructions = instructions.to_vec();
            Kernel { name, registers: 128, stack: 0, instructions }
        };
        let load = "LDG.E.NA.128.CONSTANT";
        let good = || {
            let mut kernels = vec![
                kernel("products_q8_0_8", &[load, "IMMA.16832.S8.S8", "FFMA"]),
                kernel("products_q4_k_8_gated", &[load, "IMMA.16832.S8.S8", "FFMA"]),
                kernel("products_q6_k_8", &[load, "IMMA.16816.S8.S8"]),
                kernel("products_floats8_8", &[load, "HMMA.16816.F32.BF16", "FFMA"]),
                kernel("products_brains_8", &[load, "HMMA.16816.F32.BF16"]),
                kernel("products_brains_16", &[load, "HMMA.16816.F32.BF16"]),
                kernel("pack_floats", &[]),
                kernel("embed", &["FMUL"]),
                kernel("copy_page", &[]),
            ];
            for name in ["products_brains_32", "products_brains_64", "products_brains_128_gated"] {
                kernels.push(kernel(name, &["LDGSTS.E.BYPASS.128", "HMMA.16816.F32.BF16"]));
            }
            kernels.push(Kernel {
                registers: 255,
                ..kernel("products_brains_128", &["LDGSTS.E.BYPASS.128", "HMMA.16816.F32.BF16"])
            });
            for name in ["products_f32_8", "products_bf16_8", "products_f16_8"] {
                kernels.push(kernel(name, &["LDG.E.128.CONSTANT"]));
            }
            kernels
        };
        let none = Vec::<String>::new();
        assert_eq!(faults(&good(), "sm_90a"), none);
        let faults_of = |gpu, name: &str, change: &dyn Fn(&mut Kernel<'static>)| {
            let mut kernels = good();
            change(kernels.iter_mut().find(|kernel| kernel.name == name).unwrap());
            faults(&kernels, gpu)
        };
        let with =
            |name: &str, change: &dyn Fn(&mut Kernel<'static>)| faults_of("sm_90a", name, change);
        let in_memory = ["products_q8_0_8 has 8 bytes of numbers in memory"];
        assert_eq!(with("products_q8_0_8", &|own| own.stack = 8), in_memory);
        let stored = with("embed", &|own| own.instructions.push("STL.64"));
        assert_eq!(stored, ["embed has 0 bytes of numbers in memory"]);
        // Between products nothing is in memory, on any GPU.
        let waiting = |at: usize| {
            faults_of("sm_100a", "products_q8_0_8", &|own| {
                own.stack = 8;
                own.instructions.insert(2, "IMMA.16832.S8.S8");
                own.instructions.insert(at, "LDL");
            })
        };
        assert_eq!(waiting(1), none);
        assert_eq!(waiting(2), in_memory);
        let registers = with("embed", &|own| own.registers = 129);
        assert_eq!(registers, ["embed has 129 registers a thread"]);
        let registers = with("products_brains_128", &|own| own.registers = 256);
        assert_eq!(registers, ["products_brains_128 has 256 registers a thread"]);
        for name in [
            "products_q8_0_8",
            "products_q4_k_8_gated",
            "products_q6_k_8",
            "products_floats8_8",
            "products_brains_128",
        ] {
            let lost = with(name, &|own| {
                own.instructions.retain(|own| !own.contains("MMA"));
                own.instructions.push(load);
            });
            assert!(lost.len() == 1 && lost[0].starts_with(&format!("{name} has no ")), "{lost:?}");
        }
        let lost = with("products_q6_k_8", &|own| _ = own.instructions.remove(0));
        assert_eq!(lost, ["products_q6_k_8 has no LDG.E.NA.128"]);
        let lost = with("products_brains_64", &|own| own.instructions[0] = load);
        assert_eq!(lost, ["products_brains_64 has no LDGSTS.E.BYPASS.128"]);
        let lost = with("products_f16_8", &|own| own.instructions.clear());
        assert_eq!(lost, ["products_f16_8 has no LDG.E.128"]);
        for name in ["products_brains_8", "products_brains_128", "pack_floats", "embed"] {
            let fused = with(name, &|own| own.instructions.push("FFMA.RZ"));
            assert_eq!(fused, [format!("{name} has an FFMA, and none is written")]);
        }
        let mut kernels = good();
        kernels.retain(|kernel| kernel.name != "copy_page");
        assert_eq!(faults(&kernels, "sm_90a"), ["there is no kernel copy_page"]);
    }
}
