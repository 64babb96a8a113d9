"""Screenshots of the node's page: those in docs/screens, and how far a page is from its own.

    RECON_TEST_SCREENS=1 pytest tests/api/test_api_pages.py     writes them anew

Pages are compared by the brightness of patches of about 20 pixels. That forgives other fonts, ids
and times, and notices what is missing, unstyled or elsewhere.
"""

import base64
import json
import os
from pathlib import Path

from browser import Browser

SCREENS = Path(__file__).parents[2] / "docs" / "screens"
MAX_DIFFERENCE = 4.0
"""The mean difference in brightness of the patches, of 255. A view differs by less than 0.2 from
its own screenshot, and by 5.5 to 9 from those of other views."""
_DIFFERENCE = """(async (shots) => {
    const patches = await Promise.all(shots.map(async (shot) => {
        const bytes = Uint8Array.from(atob(shot), (letter) => letter.charCodeAt(0));
        const image = await createImageBitmap(new Blob([bytes], {type: "image/webp"}));
        const canvas = new OffscreenCanvas(%d, 40);
        const context = canvas.getContext("2d");
        context.imageSmoothingQuality = "high";
        context.drawImage(image, 0, 0, canvas.width, canvas.height);
        const {data} = context.getImageData(0, 0, canvas.width, canvas.height);
        return data.filter((_, at) => at %% 4 === 1);
    }));
    const [one, other] = patches;
    return one.reduce((sum, value, at) => sum + Math.abs(value - other[at]), 0) / one.length;
})(%s)"""


async def difference_of(page: Browser, name: str, width: int) -> float:
    """How far the window, so many CSS pixels wide, is from the screenshot of this name."""
    screenshot = str((await page.call("Page.captureScreenshot", format="webp", quality=80))["data"])
    path = SCREENS / f"{name}-{width}.webp"
    if os.environ.get("RECON_TEST_SCREENS"):
        SCREENS.mkdir(exist_ok=True)
        path.write_bytes(base64.b64decode(screenshot))
    kept = base64.b64encode(path.read_bytes()).decode()
    return float(await page.run(_DIFFERENCE % (width // 20, json.dumps([screenshot, kept]))))
