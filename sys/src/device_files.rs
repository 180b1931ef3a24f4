//! The device files of GPUs, and whether this process can open them.
//!
//! Rule: a file that is absent, or that the device control group bars (EPERM), belongs to no GPU of ours: CUDA, ROCm and
//! Level Zero do not number it. A file whose mode refuses us (EACCES) is a mistake of the host's.
//! Source: Linux, admin-guide/cgroup-v1/devices.rst; NVIDIA's driver, /proc/driver/nvidia/gpus/BUS/information.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;
use wireup_core::binding::GpuVendor;
use wireup_core::topology::Device;

/// Whether a process can open a device file. Nothing of a device changes when it is opened and closed.
///
/// # Errors
/// The system's.
pub fn openable(path: &Path) -> Result<(), Errno> {
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    open(path, flags, Mode::empty()).map(drop)
}

/// Directories in which the system shows devices.
#[derive(Clone, Copy, Debug)]
pub struct DeviceDirectories<'a> {
    pub dev: &'a Path,
    pub proc: &'a Path,
}

impl DeviceDirectories<'static> {
    /// Returns the directories of this system.
    pub fn from_system() -> Self {
        Self {
            dev: Path::new("/dev"),
            proc: Path::new("/proc"),
        }
    }
}

impl DeviceDirectories<'_> {
    /// Returns the directory that NVIDIA's driver has for a GPU, if the driver is loaded.
    fn nvidia_directory(&self, gpu: &Device) -> Option<PathBuf> {
        let gpus = self.proc.join("driver/nvidia/gpus");
        gpus.is_dir().then(|| gpus.join(&gpu.bus))
    }

    /// Returns the file that represents a GPU, if it is known.
    fn own_file(&self, gpu: &Device) -> Option<PathBuf> {
        if GpuVendor::from_device(gpu) == Some(GpuVendor::Nvidia) {
            // CUDA opens no render node.
            let shown = self.nvidia_directory(gpu)?.join("information");
            let text = fs::read_to_string(shown).ok()?;
            let mut lines = text.lines();
            let minor = lines.find_map(|line| line.strip_prefix("Device Minor:"))?;
            return Some(self.dev.join(format!("nvidia{}", minor.trim())));
        }
        let render = gpu.names.iter().find(|name| name.starts_with("renderD"));
        render.map(|name| self.dev.join("dri").join(name))
    }

    /// Whether a GPU is none of ours.
    pub fn is_hidden(&self, gpu: &Device) -> bool {
        // NVIDIA's container runtime leaves out the GPUs of others.
        let nvidia = GpuVendor::from_device(gpu) == Some(GpuVendor::Nvidia);
        if nvidia
            && self
                .nvidia_directory(gpu)
                .is_some_and(|shown| !shown.exists())
        {
            return true;
        }
        let file = self.own_file(gpu);
        let opened = file.map(|file| openable(&file));
        matches!(opened, Some(Err(Errno::NOENT | Errno::PERM)))
    }

    /// Returns the files that a GPU needs and that this user may not open.
    pub fn refused(&self, gpu: &Device) -> Vec<PathBuf> {
        // Those of all GPUs of a maker; there are none without its driver.
        let shared: &[&str] = match GpuVendor::from_device(gpu) {
            Some(GpuVendor::Nvidia) => &["nvidiactl", "nvidia-uvm"],
            Some(GpuVendor::Amd) => &["kfd"],
            _ => &[],
        };
        let shared = shared.iter().map(|name| self.dev.join(name));
        let files = shared.chain(self.own_file(gpu));
        let refused = files.filter(|file| openable(file) == Err(Errno::ACCESS));
        refused.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use wireup_core::topology::DeviceKind;

    fn gpu(vendor: u16, bus: &str, names: &[&str]) -> Device {
        Device {
            kind: DeviceKind::Gpu,
            bus: bus.to_owned(),
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            ids: (vendor, 1),
            near: Default::default(),
        }
    }

    #[test]
    fn gpus_without_device_file_are_hidden() {
        let dir = tempfile::tempdir().unwrap();
        let (dev, proc) = (dir.path().join("dev"), dir.path().join("proc"));
        let places = DeviceDirectories {
            dev: &dev,
            proc: &proc,
        };
        fs::create_dir_all(dev.join("dri")).unwrap();
        fs::write(dev.join("dri/renderD128"), "").unwrap();
        let amd = |name: &str| gpu(0x1002, "0000:01:00.0", &["card0", name]);
        assert!(!places.is_hidden(&amd("renderD128")));
        assert!(places.is_hidden(&amd("renderD129")));
        // What is not known is not hidden.
        assert!(!places.is_hidden(&amd("card1")));
        let bus = "0000:3b:00.0";
        let nvidia = gpu(0x10de, bus, &["renderD130"]);
        assert!(!places.is_hidden(&nvidia), "CUDA opens no render node");
        let information = proc.join("driver/nvidia/gpus").join(bus);
        fs::create_dir_all(&information).unwrap();
        let text = "Model: \t\t NVIDIA A100\nDevice Minor: \t 2\n";
        fs::write(information.join("information"), text).unwrap();
        assert!(places.is_hidden(&nvidia), "it has no file of the driver's");
        fs::write(dev.join("nvidia2"), "").unwrap();
        assert!(!places.is_hidden(&nvidia));
        let other = gpu(0x10de, "0000:3c:00.0", &["renderD128"]);
        assert!(places.is_hidden(&other), "none that the driver shows");
        assert_eq!(places.refused(&nvidia), [] as [PathBuf; 0]);
    }
}
