//! Gives the shared library its soname: programs linked against this version keep
//! working with every later one of the same major ABI.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,liboutlive_memory.so.0");
}
