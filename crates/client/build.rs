//! Gives the shared library its soname: programs linked against this version keep
//! working with every later one of the same major ABI.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // Not rustc-cdylib-link-arg: that reaches the shared libraries of crates that depend on
    // this one too (cargo issue 9562), and a Python module of this name would be taken for
    // the C library by the loader. Executables of this package do not mind.
    println!("cargo:rustc-link-arg=-Wl,-soname,liboutlive.so.0");
    // A dependency may have a C interface of its own (crc-fast, if another crate of the same build
    // asks for it): a program that links this library gets none of its names.
    println!("cargo:rustc-link-arg=-Wl,--exclude-libs,ALL");
}
