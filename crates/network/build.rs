//! With the feature `ucx`: compiles the C side of that rail against UCX's headers. The
//! library itself is opened at run time, so nothing is linked.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    #[cfg(feature = "ucx")]
    ucx();
}

#[cfg(feature = "ucx")]
fn ucx() {
    const SOURCE: &str = "c/ucx.c";
    println!("cargo:rerun-if-changed={SOURCE}");
    println!("cargo:rerun-if-env-changed=PKG_CONFIG_PATH");
    let mut build = cc::Build::new();
    build.file(SOURCE).std("gnu11").warnings(true);
    // Headers elsewhere than where the compiler looks anyway.
    let asked = std::process::Command::new("pkg-config")
        .args(["--cflags-only-I", "ucx"])
        .output();
    if let Ok(told) = asked
        && told.status.success()
    {
        for flag in String::from_utf8_lossy(&told.stdout).split_whitespace() {
            build.include(flag.trim_start_matches("-I"));
        }
    }
    if let Err(error) = build.try_compile("outlive_ucx") {
        panic!(
            "the feature 'ucx' needs a C compiler and UCX's headers, 1.11 or later \
             (Debian: apt-get install libucx-dev): {error}"
        );
    }
}
