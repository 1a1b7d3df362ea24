//! Makes the native symbols ours alone, so that another llama.cpp or ggml can be linked into the same program.
//!
//! Every global symbol that our objects define gets another name, inside the object files: `llama_decode` becomes
//! `smol_llama_decode`, and a C++ name keeps demangling with a clone suffix, `_Z3foov` -> `_Z3foov.smol`. That covers
//! inline functions and template instances too, which a linker would otherwise merge between libraries (and, between
//! CPU levels, could merge into the one that this CPU cannot run).
//!
//! Only names change. A new string table is put at the end of the file, and the symbol table's name offsets point into
//! it; nothing moves, and no tool beside this build script is needed.

use object::endian::Endianness;
use object::read::elf::{SectionHeader as _, Sym as _};
use object::read::macho::{LoadCommandVariant, MachHeader as _, Nlist as _};
use object::{FileKind, elf, macho};
use std::collections::BTreeSet;
use std::mem::size_of;

/// A symbol that the linker sees, or the signature of a section group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Symbol {
    /// As in C source: without the underscore that Mach-O puts before.
    pub name: String,
    /// false: this object wants it from another one.
    pub defined: bool,
    /// false only where the object says that it is data.
    pub callable: bool,
    /// Where its name offset, a 32-bit number, lies in the file.
    pub entry: usize,
}

/// The string table: where it lies, and where the file says so.
struct Strings {
    offset: usize,
    size: usize,
    /// Position and width in bytes of the fields for offset and size.
    fields: [(usize, usize); 2],
    /// What the format puts before each name.
    prefix: &'static str,
}

/// Lists the global symbols of an object file.
///
/// # Errors
///
/// The file is no relocatable little-endian ELF or Mach-O object.
pub fn list(bytes: &[u8]) -> Result<Vec<Symbol>, String> {
    read(bytes).map(|(symbols, _)| symbols)
}

/// Gives every global symbol for which `new_name` has one that name.
///
/// # Errors
///
/// The file is no relocatable little-endian ELF or Mach-O object.
pub fn rename(bytes: &[u8], new_name: impl Fn(&str) -> Option<String>) -> Result<Vec<u8>, String> {
    let (symbols, strings) = read(bytes)?;
    let mut file = bytes.to_vec();
    let mut table = bytes[strings.offset..strings.offset + strings.size].to_vec();
    for symbol in &symbols {
        let Some(name) = new_name(&symbol.name) else { continue };
        let at = u32::try_from(table.len()).map_err(|_| "the string table is too large")?;
        table.extend_from_slice(strings.prefix.as_bytes());
        table.extend_from_slice(name.as_bytes());
        table.push(0);
        file[symbol.entry..symbol.entry + 4].copy_from_slice(&at.to_le_bytes());
    }
    // Apple's linker wants the table aligned.
    file.resize(file.len().next_multiple_of(8), 0);
    table.resize(table.len().next_multiple_of(8), 0);
    for ((position, width), value) in strings.fields.into_iter().zip([file.len(), table.len()]) {
        let value = (value as u64).to_le_bytes();
        file[position..position + width].copy_from_slice(&value[..width]);
    }
    file.extend_from_slice(&table);
    Ok(file)
}

/// The name of a symbol of ours in the finished library.
pub fn final_name(name: &str) -> String {
    let is_c =
        !name.starts_with("_Z") && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    match is_c {
        true if name.starts_with("smol_") => name.to_owned(),
        true => format!("smol_{name}"),
        false => format!("{name}.smol"),
    }
}

fn read(bytes: &[u8]) -> Result<(Vec<Symbol>, Strings), String> {
    if !matches!(bytes, [0x7f, b'E', b'L', b'F', _, 1, ..] | [0xcf, 0xfa, 0xed, 0xfe, ..]) {
        return Err(
            "not a little-endian ELF or Mach-O object; -flto cannot be used for the C++ side"
                .to_owned(),
        );
    }
    let found = match FileKind::parse(bytes) {
        Ok(FileKind::Elf64) => read_elf::<elf::FileHeader64<Endianness>>(bytes),
        Ok(FileKind::Elf32) => read_elf::<elf::FileHeader32<Endianness>>(bytes),
        Ok(FileKind::MachO64) => read_macho(bytes),
        kind => return Err(format!("an object file of a kind that is not supported: {kind:?}")),
    };
    let (symbols, strings) = found.map_err(|e| format!("cannot read the symbols: {e}"))?;
    let end = strings.offset.checked_add(strings.size);
    let entries_fit = symbols.iter().all(|symbol| symbol.entry + 4 <= bytes.len());
    let fields_fit = strings.fields.iter().all(|(position, width)| position + width <= bytes.len());
    if end.is_none_or(|end| end > bytes.len()) || !entries_fit || !fields_fit {
        return Err("the symbol table reaches beyond the file".to_owned());
    }
    Ok((symbols, strings))
}

fn read_elf<H: object::read::elf::FileHeader<Endian = Endianness>>(
    bytes: &[u8],
) -> object::Result<(Vec<Symbol>, Strings)> {
    let header = H::parse(bytes)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, bytes)?;
    let table = sections.symbols(endian, bytes, elf::SHT_SYMTAB)?;
    let start: u64 = sections.section(table.section())?.sh_offset(endian).into();
    // The linker keeps one of all section groups with the same signature. That of a constructor is a local symbol.
    let groups = sections.iter().filter(|section| section.sh_type(endian) == elf::SHT_GROUP);
    let signatures: BTreeSet<usize> =
        groups.map(|section| section.sh_info(endian) as usize).collect();
    let mut symbols = Vec::new();
    for (index, symbol) in table.enumerate() {
        let is_signature = signatures.contains(&index.0);
        if symbol.st_bind() == elf::STB_LOCAL && !is_signature {
            continue;
        }
        symbols.push(Symbol {
            name: String::from_utf8_lossy(table.symbol_name(endian, symbol)?).into_owned(),
            defined: is_signature || !symbol.is_undefined(endian),
            callable: symbol.st_type() != elf::STT_OBJECT && symbol.st_type() != elf::STT_TLS,
            entry: usize::try_from(start).unwrap_or(usize::MAX / 2) + index.0 * size_of::<H::Sym>(),
        });
    }
    let strings = table.string_section();
    let section = sections.section(strings)?;
    let headers: u64 = header.e_shoff(endian).into();
    let entry = usize::try_from(headers).unwrap_or(usize::MAX / 2)
        + strings.0 * size_of::<H::SectionHeader>();
    let (offset, size): (u64, u64) =
        (section.sh_offset(endian).into(), section.sh_size(endian).into());
    // Fields sh_offset and sh_size of a section header.
    let fields = if header.is_class_64() { [(24, 8), (32, 8)] } else { [(16, 4), (20, 4)] };
    Ok((
        symbols,
        Strings {
            offset: usize::try_from(offset).unwrap_or(usize::MAX),
            size: usize::try_from(size).unwrap_or(usize::MAX),
            fields: fields.map(|(position, width)| (entry + position, width)),
            prefix: "",
        },
    ))
}

fn read_macho(bytes: &[u8]) -> object::Result<(Vec<Symbol>, Strings)> {
    let header = macho::MachHeader64::<Endianness>::parse(bytes, 0)?;
    let endian = header.endian()?;
    let mut commands = header.load_commands(endian, bytes, 0)?;
    let mut position = size_of::<macho::MachHeader64<Endianness>>();
    while let Some(command) = commands.next()? {
        let LoadCommandVariant::Symtab(symtab) = command.variant()? else {
            position += command.cmdsize() as usize;
            continue;
        };
        let table = symtab.symbols::<macho::MachHeader64<Endianness>, _>(endian, bytes)?;
        let mut symbols = Vec::new();
        for (index, symbol) in table.iter().enumerate() {
            if symbol.is_stab() || !symbol.n_type().contains(macho::N_EXT) {
                continue;
            }
            let name = String::from_utf8_lossy(symbol.name(endian, table.strings())?).into_owned();
            symbols.push(Symbol {
                name: name.strip_prefix('_').map_or(name.clone(), str::to_owned),
                // A common symbol is undefined with a size.
                defined: !symbol.is_undefined() || symbol.n_value(endian) != 0,
                callable: true,
                entry: symtab.symoff.get(endian) as usize
                    + index * size_of::<macho::Nlist64<Endianness>>(),
            });
        }
        return Ok((
            symbols,
            Strings {
                offset: symtab.stroff.get(endian) as usize,
                size: symtab.strsize.get(endian) as usize,
                // Fields stroff and strsize of the load command.
                fields: [(position + 16, 4), (position + 20, 4)],
                prefix: "_",
            },
        ));
    }
    Ok((vec![], Strings { offset: 0, size: 0, fields: [(0, 0), (0, 0)], prefix: "_" }))
}
