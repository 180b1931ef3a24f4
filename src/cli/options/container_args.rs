//! What ranks run in.

use std::ffi::OsString;

use clap::builder::{OsStringValueParser, PossibleValuesParser, TypedValueParser as _};
use clap::{Args, ValueHint};

use crate::failure::CommandError;
use wireup_core::job::spec::{BindMount, ContainerSpec, ImageSpec, Runtime, Uenv};

/// Images that ranks run in.
#[derive(Debug, Args)]
#[command(next_help_heading = "Images")]
pub(crate) struct ContainerArgs {
    /// Mount this squashfs image for the ranks, and for no other process of their hosts; once more for another image
    /// [default directory: /user-environment; docs/containers.md]
    #[arg(long = "uenv", value_name = "FILE[:DIRECTORY]", value_hint = ValueHint::FilePath)]
    #[arg(value_parser = OsStringValueParser::new().try_map(|text| Uenv::parse(&text)))]
    uenvs: Vec<Uenv>,

    #[command(flatten)]
    image: ImageArgs,
}

/// The image that ranks have for their root directory.
#[derive(Debug, Args)]
#[command(next_help_heading = "Images")]
pub(crate) struct ImageArgs {
    /// Run the ranks in this image: a root directory or a file of Apptainer (begins with / or ./), or the name of an image of podman
    #[arg(long, value_name = "DIRECTORY|NAME")]
    image: Option<OsString>,

    /// What makes the container: apptainer, bwrap, charliecloud, crun or podman [default: bwrap for a path, podman for a name]
    #[arg(long, value_name = "RUNTIME", requires = "image")]
    #[arg(value_parser = PossibleValuesParser::new(Runtime::ALL.map(Runtime::as_str)).map(|name| {
        Runtime::from_name(&name).expect("only these names are accepted")
    }))]
    runtime: Option<Runtime>,

    /// Mount a directory or file of the hosts in the image, :ro for reading only; /proc, /sys, /dev, /tmp and the working
    /// directory are there anyway
    #[arg(
        long = "image-mount",
        value_name = "SOURCE[:TARGET][:ro]",
        requires = "image"
    )]
    #[arg(value_parser = OsStringValueParser::new().try_map(|text| BindMount::parse(&text)))]
    mounts: Vec<BindMount>,
}

impl ContainerArgs {
    /// As it is asked for.
    ///
    /// # Errors
    /// [`CommandError`] for an image that the runtime cannot take.
    pub(crate) fn resolve(self) -> Result<ContainerSpec, CommandError> {
        Ok(ContainerSpec {
            uenvs: self.uenvs,
            image: self.image.resolve()?,
        })
    }
}

impl ImageArgs {
    /// As it is asked for.
    ///
    /// # Errors
    /// As [`ContainerArgs::resolve`].
    pub(crate) fn resolve(self) -> Result<Option<ImageSpec>, CommandError> {
        let image = self
            .image
            .map(|image| ImageSpec::new(image, self.runtime, self.mounts));
        image.transpose().map_err(CommandError::request)
    }
}

/// The words that ask for an image.
pub(crate) fn words(image: &ImageSpec) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["--image".into(), image.image.clone()];
    words.extend(["--runtime".into(), image.runtime.as_str().into()]);
    for mount in &image.mounts {
        words.extend(["--image-mount".into(), mount.to_string().into()]);
    }
    words
}
