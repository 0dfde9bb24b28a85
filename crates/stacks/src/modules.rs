//! The program and the libraries of a process: how their stacks are unwound, and what is where in
//! them.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use addr2line::Loader;
use framehop::x86_64::{CacheX86_64, UnwindRegsX86_64, UnwinderX86_64};
use framehop::{ExplicitModuleSectionInfo, FrameAddress, Module, Unwinder};
use object::{Object, ObjectSection, ObjectSegment, ReadCache, ReadRef, SegmentFlags, elf};
use outlive_image::model::{Backing, Mapping};
use outlive_image::procfs;

use crate::held::Snapshot;
use crate::{Frame, Source};

/// Bytes of a section that are read; one that is larger is damaged.
const SECTION_BYTES_MAX: u64 = 1 << 30;
/// What mappings begin and end at.
const PAGE: u64 = 4096;
/// The kernel's own code in each process.
const VDSO: &str = "[vdso]";

/// An object in a process.
struct Loaded {
    range: Range<u64>,
    /// Address in the process minus address in the file.
    bias: u64,
    /// As the process knows it.
    path: PathBuf,
    /// Where it is read from here.
    here: PathBuf,
    names: Option<Option<Loader>>,
}

/// All of a process.
pub struct Modules {
    unwinder: UnwinderX86_64<Vec<u8>>,
    cache: CacheX86_64,
    loaded: Vec<Loaded>,
    memory: Option<File>,
}

impl Modules {
    /// Those that a process has now. What cannot be read is left out: its frames have no names,
    /// and are unwound by frame pointers.
    pub fn of(pid: i32) -> Modules {
        let mut modules = Modules {
            unwinder: UnwinderX86_64::new(),
            cache: CacheX86_64::new(),
            loaded: Vec::new(),
            memory: File::open(format!("/proc/{pid}/mem")).ok(),
        };
        let executable = |it: &Mapping| it.protection & libc::PROT_EXEC as u32 != 0;
        let mappings = procfs::mappings(pid).unwrap_or_default();
        for mapping in mappings.into_iter().filter(executable) {
            let range = mapping.start..mapping.end;
            match mapping.backing {
                Backing::File { path, offset, .. } => {
                    let here = PathBuf::from(format!("/proc/{pid}/root{path}"));
                    let _ = modules.add_file(range, offset, path.into(), here);
                }
                Backing::Kernel(name) if name == VDSO => {
                    let _ = modules.add_vdso(range);
                }
                Backing::Kernel(_) | Backing::Anonymous => {}
            }
        }
        modules
    }

    fn add_file(
        &mut self,
        range: Range<u64>,
        offset: u64,
        path: PathBuf,
        here: PathBuf,
    ) -> io::Result<()> {
        let cache = ReadCache::new(File::open(&here)?);
        self.add(range, offset, path, here, &cache)
    }

    fn add_vdso(&mut self, range: Range<u64>) -> io::Result<()> {
        let mut bytes = vec![0; usize::try_from(range.end - range.start).unwrap_or(0)];
        let memory = self.memory.as_ref().ok_or(io::ErrorKind::NotFound)?;
        memory.read_exact_at(&mut bytes, range.start)?;
        self.add(range, 0, VDSO.into(), PathBuf::new(), &bytes[..])
    }

    fn add<'d>(
        &mut self,
        range: Range<u64>,
        offset: u64,
        path: PathBuf,
        here: PathBuf,
        data: impl ReadRef<'d>,
    ) -> io::Result<()> {
        let odd = |_| io::Error::from(io::ErrorKind::InvalidData);
        let file = object::File::parse(data).map_err(odd)?;
        // Neighbours share pages of the file: only code is looked for.
        let page = |at: u64| at & !(PAGE - 1);
        let bias = file
            .segments()
            .filter(|segment| is_code(segment.flags()))
            .find(|segment| {
                let (at, length) = segment.file_range();
                (page(at)..at.saturating_add(length)).contains(&offset)
            })
            .map(|segment| {
                let (at, _) = segment.file_range();
                let in_file = page(segment.address()).wrapping_add(offset - page(at));
                range.start.wrapping_sub(in_file)
            })
            .ok_or(io::ErrorKind::InvalidData)?;
        let section = |name: &str| {
            let found = file.section_by_name(name)?;
            let range = found.address()..found.address().checked_add(found.size())?;
            Some((found, range))
        };
        let bytes = |name: &str| {
            let (found, _) = section(name)?;
            if found.size() > SECTION_BYTES_MAX {
                return None;
            }
            found.uncompressed_data().ok().map(Vec::from)
        };
        let lies = |name: &str| section(name).map(|(_, range)| range);
        let sections = ExplicitModuleSectionInfo {
            text_svma: lies(".text"),
            got_svma: lies(".got"),
            eh_frame_svma: lies(".eh_frame"),
            eh_frame: bytes(".eh_frame"),
            eh_frame_hdr_svma: lies(".eh_frame_hdr"),
            eh_frame_hdr: bytes(".eh_frame_hdr"),
            debug_frame: bytes(".debug_frame"),
            ..ExplicitModuleSectionInfo::default()
        };
        let name = path.display().to_string();
        self.unwinder
            .add_module(Module::new(name, range.clone(), bias, sections));
        self.loaded.push(Loaded {
            range,
            bias,
            path,
            here,
            names: None,
        });
        Ok(())
    }

    /// The addresses of a stack, the innermost first: where a thread is, then in each caller the
    /// call itself, or what a signal has interrupted.
    pub fn unwind(&mut self, snapshot: &Snapshot, most: usize) -> Vec<u64> {
        let mut registers =
            UnwindRegsX86_64::new(snapshot.instruction, snapshot.stack, snapshot.frame);
        let mut word = |address| snapshot.word(address).ok_or(());
        let mut addresses = vec![snapshot.instruction];
        let mut at = FrameAddress::from_instruction_pointer(snapshot.instruction);
        while addresses.len() < most {
            // First: without a rule for that place, one by frame pointers would leave out who was
            // interrupted.
            if let Some(interrupted) = self.interrupted(at, &registers, snapshot) {
                let instruction = interrupted.ip();
                addresses.push(instruction);
                registers = interrupted;
                at = FrameAddress::from_instruction_pointer(instruction);
                continue;
            }
            let caller = self
                .unwinder
                .unwind_frame(at, &mut registers, &mut self.cache, &mut word);
            let return_address = caller.ok().flatten();
            let Some(next) = return_address.and_then(FrameAddress::from_return_address) else {
                break;
            };
            // The place before it is in the function that called.
            addresses.push(next.address_for_lookup());
            at = next;
        }
        addresses
    }

    /// What a signal has interrupted: its handler returns into code that asks the kernel to go on
    /// with what lies on the stack (`struct ucontext` of the kernel).
    fn interrupted(
        &self,
        at: FrameAddress,
        registers: &UnwindRegsX86_64,
        snapshot: &Snapshot,
    ) -> Option<UnwindRegsX86_64> {
        // mov $__NR_rt_sigreturn, %rax; syscall
        const RETURN: [u8; 9] = [0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05];
        // Where general registers lie in it, in words.
        const GENERAL: u64 = 5;
        const RBP: u64 = 10;
        const RSP: u64 = 15;
        const RIP: u64 = 16;
        let mut code = [0; RETURN.len()];
        let memory = self.memory.as_ref()?;
        memory.read_exact_at(&mut code, at.address()).ok()?;
        let word = |number| snapshot.word(registers.sp() + 8 * (GENERAL + number));
        let whole = (word(RIP)?, word(RSP)?, word(RBP)?);
        (code == RETURN).then(|| UnwindRegsX86_64::new(whole.0, whole.1, whole.2))
    }

    /// Adds what is known of an address: a frame, and before it those that were put into it.
    pub fn name(&mut self, address: u64, frames: &mut Vec<Frame>) {
        let mut frame = Frame {
            address,
            function: None,
            object: None,
            source: None,
            inlined: false,
        };
        let found = self
            .loaded
            .iter_mut()
            .find(|it| it.range.contains(&address));
        let Some(loaded) = found else {
            return frames.push(frame);
        };
        frame.object = Some(loaded.path.clone());
        let in_file = address.wrapping_sub(loaded.bias);
        let names = loaded.names.get_or_insert_with(|| load(&loaded.here));
        let Some(names) = names else {
            return frames.push(frame);
        };
        let before = frames.len();
        if let Ok(mut found) = names.find_frames(in_file) {
            while let Ok(Some(one)) = found.next() {
                let function = one.function.as_ref();
                frames.push(Frame {
                    function: function.and_then(|it| Some(it.demangle().ok()?.into_owned())),
                    source: one.location.and_then(|it| {
                        Some(Source {
                            file: it.file?.to_owned(),
                            line: it.line.unwrap_or(0),
                        })
                    }),
                    inlined: true,
                    ..frame.clone()
                });
            }
        }
        match frames[before..].last_mut() {
            Some(outer) => {
                outer.inlined = false;
                if outer.function.is_none() {
                    outer.function = symbol(names, in_file);
                }
            }
            None => {
                frame.function = symbol(names, in_file);
                frames.push(frame);
            }
        }
    }
}

fn is_code(flags: SegmentFlags) -> bool {
    matches!(flags, SegmentFlags::Elf { p_flags, .. } if p_flags.0 & elf::PF_X.0 != 0)
}

fn load(path: &Path) -> Option<Loader> {
    Loader::new(path).ok()
}

fn symbol(names: &Loader, address: u64) -> Option<String> {
    let name = names.find_symbol(address)?;
    Some(addr2line::demangle_auto(name.into(), None).into_owned())
}
