//! This machine with devices that it does not have: as hwloc describes it (`HWLOC_XMLFILE`), or as the kernel would show it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A type of GPU in PCI's numbers: the maker, and what he calls it.
pub const AMD: &str = "1002:740f";
pub const INTEL: &str = "8086:0bd5";
pub const NVIDIA: &str = "10de:20b0";

/// Writes the topology of this machine as hwloc describes it, with additional GPUs of one type, whose render nodes have
/// these numbers from 128 on. The file is in `dir`.
pub fn with_gpus(dir: &Path, ids: &str, numbers: &[u32]) -> PathBuf {
    let path = dir.join("gpus.xml");
    let status = Command::new("lstopo-no-graphics")
        .args(["--no-io", "--of", "xml", "--force"])
        .arg(&path)
        .status();
    assert!(status.unwrap().success());
    let text = fs::read_to_string(&path).unwrap();
    let gpus = numbers.iter().map(|number| {
        let (bus, id) = (number - 100, number * 10_000);
        format!(
            "<object type=\"Bridge\" gp_index=\"{id}\" bridge_type=\"0-1\" depth=\"0\" bridge_pci=\"0000:[{bus:02x}-{bus:02x}]\">\
             <object type=\"PCIDev\" gp_index=\"{}\" pci_busid=\"0000:{bus:02x}:00.0\" pci_type=\"0302 [{ids}] [0000:0000] 00\" \
             pci_link_speed=\"31.507692\"><object type=\"OSDev\" gp_index=\"{}\" name=\"renderD{number}\" osdev_type=\"1\"/>\
             </object></object>",
            id + 1,
            id + 2
        )
    });
    // At the end of the machine: the last object but one that is closed.
    let end = text.rfind("</object>").unwrap();
    let text = [&text[..end], &gpus.collect::<String>(), &text[end..]].concat();
    fs::write(&path, text).unwrap();
    path
}

/// Lines of a shell that give a mount namespace a `/sys` with such GPUs alone on the PCI bus, with render nodes of these
/// numbers. They need a directory for it, in which a file system is mounted.
pub fn sys_with_gpus(dir: &Path, ids: &str, numbers: &[u32]) -> String {
    let dir = dir.display();
    let mut lines = format!(
        "mkdir -p {dir}; mount -n -t tmpfs t {dir}; mkdir -p {dir}/devices/pci0000:00 {dir}/pci {dir}/class/drm; \
         cp -dR /sys/class/. {dir}/class/ 2>/dev/null || :\n"
    );
    // The vendor, the type and the class are where PCI has them in the configuration space.
    let octal = |number: &str| {
        let number = u16::from_str_radix(number, 16).unwrap();
        let bytes = number.to_le_bytes();
        bytes.map(|byte| format!("\\{byte:03o}")).concat()
    };
    let (vendor, model) = ids.split_once(':').unwrap();
    let config = [
        &octal(vendor),
        &octal(model),
        "\\0\\0\\0\\0\\0\\0\\002\\003",
    ]
    .concat();
    for number in numbers {
        let bus = format!("0000:{:02x}:00.0", number - 100);
        let device = format!("{dir}/devices/pci0000:00/{bus}");
        let node = format!("{device}/drm/renderD{number}");
        lines += &format!(
            "mkdir -p {node}; echo 226:{number} >{node}/dev; ln -s {node} {dir}/class/drm; ln -s {device} {dir}/pci; \
             echo 0x{vendor} >{device}/vendor; echo 0x{model} >{device}/device; echo 0x030200 >{device}/class; \
             (printf '{config}'; head -c 244 /dev/zero) >{device}/config; \
             for i in 1 2 3 4 5 6 7; do echo 0x0 0x0 0x0; done >{device}/resource\n"
        );
    }
    lines
        + &format!(
            "mount -n --bind {dir}/pci /sys/bus/pci/devices; mount -n --bind {dir}/class /sys/class\n"
        )
}
