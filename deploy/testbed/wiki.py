"""The wiki of a testbed: Debian's MediaWiki, its settings, its pages, and which of them requests ask for.

Pages are made of invented words under a fixed seed, so everybody has the same; their lengths differ, and so
does what they cost. No cache holds whole pages or parsed ones: every request works through its page's text.
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from steelyard.deploy.testbed.calibration import Calibration
from steelyard.deploy.testbed.network import VIP
from steelyard.deploy.testbed.schedule import Schedule
from steelyard.envs.errors import UserError
from steelyard.envs.scenario import Scenario

if TYPE_CHECKING:
    import numpy as np

INSTALL = (
    "make system-wiki, which installs mediawiki mariadb-server-core mariadb-client-core php-cli php-mysql "
    "php-intl php-mbstring php-xml"
)
CODE = Path("/usr/share/mediawiki")
EXTENSIONS = ("mysqli", "intl", "mbstring", "xml", "dom")
"""Of PHP; MediaWiki does not run without them."""
MODULES = ("alias", "env")
"""Of Apache, besides those of every server."""
PAGES = 40
ZIPF = 1.0
"""Page k of 1, 2, ... is asked for with a probability proportional to k ** -ZIPF."""
DATABASE = "wiki"
USER = "www-data"
"""Database and Apache serve as this user."""
_SEED = 1
_STREAM = 0x77696B69  # apart from other uses of an episode's seed

SETTINGS = """\
<?php
$wgSitename = 'Testbed';
$wgServer = 'http://{host}';
$wgScriptPath = '/wiki';
$wgLanguageCode = 'en';
$wgDBtype = 'mysql';
$wgDBserver = 'localhost:{socket}';
$wgDBname = '{database}';
$wgDBuser = 'root';
$wgDBpassword = '';
$wgSecretKey = '{secret}';
$wgCacheDirectory = '{cache}';
$wgMainCacheType = CACHE_NONE;
$wgParserCacheType = CACHE_NONE;
$wgMessageCacheType = CACHE_NONE;
$wgUseLocalMessageCache = true;
$wgUseFileCache = false;
$wgJobRunRate = 0;
$wgEnableUploads = false;
$wgDefaultSkin = 'vector';
wfLoadSkin( 'Vector' );
"""

SERVER = """\
Alias /wiki "{code}"
SetEnv MW_CONFIG_FILE "{settings}"
<Directory "{code}">
  Options FollowSymLinks
  Require all granted
  AllowOverride None
  <FilesMatch "\\.php$">
    SetHandler application/x-httpd-php
  </FilesMatch>
</Directory>
"""


@dataclass(frozen=True)
class WikiPrograms:
    """Where this machine has what a wiki needs."""

    code: Path
    version: str
    """Of MediaWiki."""
    php: Path
    mariadbd: Path
    install_db: Path


def find_wiki(search_path: str | None = None, code: Path = CODE) -> WikiPrograms:
    """The installed MediaWiki, PHP and MariaDB; UserError naming what is missing and how to install it."""
    definitions = code / "includes" / "Defines.php"
    found = re.search(r"'MW_VERSION', '([^']+)'", definitions.read_text()) if definitions.exists() else None
    if found is None or not (code / "index.php").exists():
        raise _missing(f"MediaWiki ({code})")
    programs = {}
    for name in ("php", "mariadbd", "mariadb-install-db", "my_print_defaults"):
        path = shutil.which(name, path=search_path or "/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
        if path is None:
            raise _missing(f"the program {name}")
        programs[name] = Path(path)
    has = subprocess.run([programs["php"], "-m"], capture_output=True, text=True, timeout=30).stdout.split()
    for name in EXTENSIONS:
        if name not in has:
            raise _missing(f"PHP's extension {name}")
    return WikiPrograms(code, found[1], programs["php"], programs["mariadbd"], programs["mariadb-install-db"])


def _missing(what: str) -> UserError:
    return UserError(f"--profile wiki: {what} is missing; install it: {INSTALL}")


def settings(socket: Path, cache: Path) -> str:
    """The text of LocalSettings.php."""
    secret = hashlib.sha256(b"a wiki that nobody logs in to").hexdigest()
    return SETTINGS.format(host=VIP, socket=socket, database=DATABASE, cache=cache, secret=secret)


def server_configuration(programs: WikiPrograms, settings_file: Path) -> str:
    """What a server's configuration has besides that of every server."""
    return SERVER.format(code=programs.code, settings=settings_file)


def page_title(page: int) -> str:
    """As addresses and file names have it; pages count from 0."""
    return f"Page_{page + 1:02}"


def page_path(page: int) -> str:
    """What a request for a page asks for."""
    return f"/wiki/index.php?title={page_title(page)}"


def page_texts(count: int = PAGES) -> list[str]:
    """The pages' text in MediaWiki's markup: headings, paragraphs with links, lists and tables."""
    import numpy as np

    stream = np.random.default_rng(_SEED)
    syllables = [c + v for c in "bdfgklmnprstvz" for v in "aeiou"]
    words = ["".join(stream.choice(syllables, stream.integers(1, 5))) for _ in range(2000)]
    return [_page_text(stream, words, count) for _ in range(count)]


def _page_text(stream: np.random.Generator, words: list[str], pages: int) -> str:
    """One page, of 3 to 40 sections; log-normal, as lengths of articles are."""
    sections = int(min(40, max(3, stream.lognormal(2.2, 0.6))))
    parts = []
    for _ in range(sections):
        parts.append(f"== {_sentence(stream, words, 3, pages)} ==")
        parts.append(" ".join(_sentence(stream, words, 14, pages) + "." for _ in range(6)))
        parts += [f"* ''{_sentence(stream, words, 5, pages)}''" for _ in range(4)]
        rows = [" || ".join(stream.choice(words, 4)) for _ in range(4)]
        parts.append('{| class="wikitable"\n|-\n| ' + "\n|-\n| ".join(rows) + "\n|}")
    return "\n\n".join(parts) + "\n"


def _sentence(stream: np.random.Generator, words: list[str], length: int, pages: int) -> str:
    chosen = [str(word) for word in stream.choice(words, length)]
    if length > 10:
        other = page_title(int(stream.integers(pages)))
        chosen[length // 2] = f"[[{other}|{chosen[length // 2]}]] '''{chosen[0]}'''"
    return " ".join(chosen)


def popularity(count: int = PAGES) -> np.ndarray:
    """Probability of each page, (count,)."""
    import numpy as np

    weights = np.arange(1, count + 1) ** -ZIPF
    found: np.ndarray = weights / weights.sum()
    return found


def wiki_schedule(scenario: Scenario, seed: int, calibration: Calibration) -> Schedule:
    """The scenario's arrivals of a seed, each for a page that the seed draws; demands are what pages cost."""
    import numpy as np

    from steelyard import native

    arrival_s = native.flow_schedule(scenario.to_native(), seed)["arrival_s"]
    stream = np.random.default_rng([_STREAM, seed])
    page = stream.choice(PAGES, size=len(arrival_s), p=popularity())
    return Schedule(
        np.rint(arrival_s * 1e9).astype(np.int64),
        [page_path(k) for k in range(PAGES)],
        page.astype(np.uint32),
        np.array(calibration.page_s)[page],
    )


def mean_cost_s(calibration: Calibration) -> float:
    """CPU time of a request as pages are drawn [s]."""
    return float((popularity() * calibration.page_s).sum())
