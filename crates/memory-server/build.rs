//! Gives the shared library its soname: programs linked against this version keep
//! working with every later one of the same major ABI.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Not rustc-cdylib-link-arg: that reaches the shared libraries of crates that depend on
    // this one too (cargo issue 9562), as the Python module does. Executables do not mind.
    println!("cargo:rustc-link-arg=-Wl,-soname,liboutlive_memory.so.0");
}
