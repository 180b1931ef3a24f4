//! Options for images and containers of the ranks.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;

use clap::builder::{OsStringValueParser, PossibleValuesParser, TypedValueParser as _};
use clap::{Args, ValueHint};

use wireup_core::failure::CommandError;
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
    /// Run the ranks in this image: a root directory or a file of Apptainer (begins with / or ./), or the name of an image
    /// of podman. RUNTIME makes the container: apptainer, bwrap, charliecloud, crun or podman [default: bwrap for a path,
    /// podman for a name]
    #[arg(long, value_name = "[RUNTIME:]DIRECTORY|NAME")]
    #[arg(value_parser = OsStringValueParser::new().map(ImageArg::parse))]
    image: Option<ImageArg>,

    /// Old spelling of `--image RUNTIME:…`
    #[arg(long, hide = true, value_name = "RUNTIME", requires = "image")]
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

/// An image, and what makes a container of it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct ImageArg {
    runtime: Option<Runtime>,
    image: OsString,
}

impl ImageArg {
    fn parse(text: OsString) -> Self {
        let bytes = text.as_bytes();
        let found = Runtime::ALL.into_iter().find_map(|runtime| {
            let rest = bytes.strip_prefix(runtime.as_str().as_bytes())?;
            Some(Self {
                runtime: Some(runtime),
                image: OsStr::from_bytes(rest.strip_prefix(b":")?).to_owned(),
            })
        });
        found.unwrap_or(Self {
            runtime: None,
            image: text,
        })
    }
}

impl ContainerArgs {
    /// Returns the images as the options request them.
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
    /// Returns the image as the options request it.
    ///
    /// # Errors
    /// The errors of [`ContainerArgs::resolve`].
    pub(crate) fn resolve(self) -> Result<Option<ImageSpec>, CommandError> {
        let image = self.image.map(|ImageArg { runtime, image }| {
            ImageSpec::new(image, runtime.or(self.runtime), self.mounts)
        });
        image.transpose().map_err(CommandError::request)
    }
}

/// The words that ask for an image.
pub(crate) fn words(image: &ImageSpec) -> Vec<OsString> {
    let mut named = OsString::from(format!("{}:", image.runtime.as_str()));
    named.push(&image.image);
    let mut words: Vec<OsString> = vec!["--image".into(), named];
    for mount in &image.mounts {
        words.extend(["--image-mount".into(), mount.to_string().into()]);
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_names_its_runtime() {
        let read = |text: &str| {
            let arg = ImageArg::parse(text.into());
            (arg.runtime, arg.image.into_string().unwrap())
        };
        let pair = |runtime, image: &str| (runtime, image.to_owned());
        assert_eq!(
            read("crun:/srv/root"),
            pair(Some(Runtime::Crun), "/srv/root")
        );
        let tagged = pair(Some(Runtime::Podman), "debian:12");
        assert_eq!(read("podman:debian:12"), tagged);
        for plain in ["debian:12", "/srv/crun:root", "crun", "podmans:1"] {
            assert_eq!(read(plain), pair(None, plain));
        }
    }

    #[test]
    fn image_is_same_after_its_words_are_read() {
        use clap::Parser;
        #[derive(Parser)]
        struct Whole {
            #[command(flatten)]
            image: ImageArgs,
        }
        let image = ImageSpec::new("./root".into(), Some(Runtime::Crun), Vec::new()).unwrap();
        let line = std::iter::once(OsString::from("w")).chain(words(&image));
        assert_eq!(
            Whole::parse_from(line).image.resolve().unwrap(),
            Some(image)
        );
    }
}
