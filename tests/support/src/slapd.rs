//! A directory server of its own for a test: OpenLDAP's, with wireup's schema and a place for names.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{repository, skip};

const SERVER: &str = "/usr/sbin/slapd";
const WRITER: &str = "/usr/sbin/slapadd";

/// Below it names are kept.
pub const BASE: &str = "ou=names,dc=example,dc=org";

/// One that may write all names, by its password. Others are users whom the kernel names, who write their own.
pub const LOGIN: (&str, &str) = ("cn=launches,dc=example,dc=org", "the password");

/// The configuration and data of a server in a directory.
#[derive(Debug)]
pub struct Slapd {
    dir: PathBuf,
}

impl Slapd {
    /// Makes them in a directory, with the certificate, key and authority in another (`cert.pem`, `key.pem`, `ca.pem`) if it is
    /// named; `None`, and the test is ignored, where there is no such server.
    #[track_caller]
    pub fn new(dir: &Path, certificates: Option<&Path>) -> Option<Self> {
        if !Path::new(SERVER).exists() {
            skip(&format!("no {SERVER}: run scripts/setup"));
            return None;
        }
        let own = Self {
            dir: dir.join("slapd"),
        };
        for part in ["config", "data"] {
            std::fs::create_dir_all(own.dir.join(part)).unwrap();
        }
        own.load(0, &own.configuration(certificates));
        own.load(1, DATA);
        Some(own)
    }

    fn load(&self, number: u32, entries: &str) {
        let file = self.dir.join("entries.ldif");
        std::fs::write(&file, entries).unwrap();
        let mut command = Command::new(WRITER);
        command.arg("-F").arg(self.dir.join("config"));
        command.args(["-n", &number.to_string(), "-l"]).arg(&file);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    fn configuration(&self, certificates: Option<&Path>) -> String {
        let dir = self.dir.display();
        let schema = repository().join("packaging/openldap/wireup.ldif");
        let schema = schema.display();
        let tls = certificates.map(|from| {
            let from = from.display();
            format!(
                "olcTLSCACertificateFile: {from}/ca.pem\n\
                 olcTLSCertificateFile: {from}/cert.pem\n\
                 olcTLSCertificateKeyFile: {from}/key.pem\n"
            )
        });
        let tls = tls.unwrap_or_default();
        let login = LOGIN.0;
        format!(
            r#"dn: cn=config
objectClass: olcGlobal
cn: config
olcPidFile: {dir}/pid
{tls}
dn: cn=module,cn=config
objectClass: olcModuleList
cn: module
olcModulePath: /usr/lib/ldap
olcModuleLoad: back_mdb

dn: cn=schema,cn=config
objectClass: olcSchemaConfig
cn: schema

include: file:///etc/ldap/schema/core.ldif

include: file://{schema}

dn: olcDatabase={{-1}}frontend,cn=config
objectClass: olcDatabaseConfig
objectClass: olcFrontendConfig
olcDatabase: {{-1}}frontend
olcSizeLimit: size.prtotal=unlimited

dn: olcDatabase=mdb,cn=config
objectClass: olcDatabaseConfig
objectClass: olcMdbConfig
olcDatabase: mdb
olcSuffix: dc=example,dc=org
olcDbDirectory: {dir}/data
olcDbMaxSize: 1073741824
olcDbNoSync: TRUE
olcDbIndex: objectClass,wireupSession eq
olcAccess: {{0}}to attrs=userPassword by anonymous auth by * none
olcAccess: {{1}}to dn.regex="^(.+,)?wireupId=([0-9]+),{BASE}$"
  by dn.regex="^gidNumber=[0-9]+[+]uidNumber=$2,cn=peercred,cn=external,cn=auth$" write
  by dn.exact="{login}" write
  by * none
olcAccess: {{2}}to dn.base="{BASE}" attrs=children by users write
olcAccess: {{3}}to * by * read
"#
        )
    }

    /// The path of its socket.
    pub fn socket(&self) -> PathBuf {
        self.dir.join("ldapi")
    }

    /// The URL of its socket.
    pub fn url(&self) -> String {
        let path = self.socket().display().to_string();
        format!("ldapi://{}", path.replace('/', "%2f"))
    }

    /// The server's command line: it serves its socket, and these URLs.
    pub fn words(&self, urls: &[String]) -> Vec<String> {
        let all = [&[self.url()], urls].concat().join(" ");
        let config = self.dir.join("config").display().to_string();
        // With a level of messages it stays in the foreground.
        [SERVER, "-d", "0", "-F", &config, "-h", &all]
            .map(str::to_owned)
            .to_vec()
    }
}

const DATA: &str = "\
dn: dc=example,dc=org
objectClass: dcObject
objectClass: organization
dc: example
o: example

dn: ou=names,dc=example,dc=org
objectClass: organizationalUnit
ou: names

dn: cn=launches,dc=example,dc=org
objectClass: organizationalRole
objectClass: simpleSecurityObject
cn: launches
userPassword: the password
";
