//! Reads infos about the images in which a spawned job's ranks run. No I/O.

use std::ffi::{OsStr, OsString};

use crate::plan::spawned::text;
use wireup_core::job::spawn::{SpawnFailure, SpawnInfo};
use wireup_core::job::spec::{BindMount, ContainerSpec, ImageSpec, Runtime, Uenv};

/// Images that a request names; absent values are those of the launch.
#[derive(Clone, Default, PartialEq, Debug)]
pub(in crate::plan::spawned) struct ImageAttributes {
    uenvs: Vec<Uenv>,
    image: Option<OsString>,
    runtime: Option<Runtime>,
    mounts: Vec<BindMount>,
}

/// Parses each line of an info.
fn lines<T, E: std::fmt::Display>(
    info: &SpawnInfo,
    parse: impl Fn(&OsStr) -> Result<T, E>,
) -> Result<Vec<T>, SpawnFailure> {
    let lines = info.value.lines().filter(|line| !line.is_empty());
    let values = lines.map(|line| {
        let value = parse(line.as_ref());
        value.map_err(|error| text(&info.key, format!("{line:?}: {error}")))
    });
    values.collect()
}

impl ImageAttributes {
    pub(super) fn uenv(&mut self, info: &SpawnInfo) -> Result<(), SpawnFailure> {
        self.uenvs.extend(lines(info, Uenv::parse)?);
        Ok(())
    }

    pub(super) fn image(&mut self, info: &SpawnInfo) {
        self.image = (!info.value.is_empty()).then(|| OsString::from(&info.value));
    }

    pub(super) fn runtime(&mut self, info: &SpawnInfo) -> Result<(), SpawnFailure> {
        let unknown = || {
            let names = Runtime::ALL.map(Runtime::as_str).join(", ");
            text(
                &info.key,
                format!("unknown runtime {:?}; use one of {names}", info.value),
            )
        };
        self.runtime = Some(Runtime::from_name(&info.value).ok_or_else(unknown)?);
        Ok(())
    }

    pub(super) fn mount(&mut self, info: &SpawnInfo) -> Result<(), SpawnFailure> {
        self.mounts.extend(lines(info, BindMount::parse)?);
        Ok(())
    }

    /// Whether any info is given, so that a container is made for the job.
    pub(in crate::plan::spawned) fn is_given(&self) -> bool {
        *self != Self::default()
    }

    /// Container that is made for the job. `launch` is that of the launch's ranks, whose uenvs are mounted already.
    ///
    /// # Errors
    /// [`SpawnFailure`] for an image that the runtime does not support, and for a runtime or mount without an image.
    pub(in crate::plan::spawned) fn spec(
        &self,
        launch: &ContainerSpec,
    ) -> Result<ContainerSpec, SpawnFailure> {
        let image = match &self.image {
            Some(image) => {
                let spec = ImageSpec::new(image.clone(), self.runtime, self.mounts.clone());
                Some(spec.map_err(|error| text("image", error))?)
            }
            None if self.runtime.is_some() => {
                return Err(text("runtime", "requires an image; give image too"));
            }
            None if !self.mounts.is_empty() => {
                return Err(text("image_mount", "requires an image; give image too"));
            }
            None => launch.image.clone(),
        };
        let uenvs = self.uenvs.clone();
        Ok(ContainerSpec { uenvs, image })
    }
}
