// What the kernels share: types, the ops' numbers, and the coefficients of geometric ops.
//
// Every rounding is Pillow's. Compile with contraction off (--fmad=false): a fused multiply-add rounds once where Pillow
// rounds twice. No header is included, so NVRTC needs nothing but these files.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

// In the order of the op table.
enum Op { IDENTITY, AUTOCONTRAST, EQUALIZE, ROTATE, SOLARIZE, SOLARIZE_ADD, COLOR, CONTRAST, BRIGHTNESS, SHARPNESS,
          SHEAR_X, SHEAR_Y, TRANSLATE_X, TRANSLATE_Y, POSTERIZE, INVERT, CUTOUT, FLIP_X, FLIP_Y, ROTATE_90 };

// ---- Coefficients: the same numbers as coefficients.py ----

struct DD { double hi, lo; };  // an unevaluated sum of two doubles, about 106 bits

__device__ DD two_sum(double a, double b) { double s = a + b, t = s - a; return {s, (a - (s - t)) + (b - t)}; }
__device__ DD two_product(double a, double b) { double p = a * b; return {p, fma(a, b, -p)}; }
__device__ DD add(DD a, DD b) { DD s = two_sum(a.hi, b.hi); return two_sum(s.hi, s.lo + (a.lo + b.lo)); }
__device__ DD multiply(DD a, DD b) {
  DD p = two_product(a.hi, b.hi);
  return two_sum(p.hi, p.lo + (a.hi * b.lo + a.lo * b.hi));
}

__device__ const DD INVERSE_FACTORIAL[31] = {
  {1.0, 0.0}, {1.0, 0.0}, {0.5, 0.0}, {0.16666666666666666, 9.25185853854297e-18},
  {0.041666666666666664, 2.3129646346357427e-18}, {0.008333333333333333, 1.1564823173178714e-19},
  {0.001388888888888889, -5.300543954373577e-20}, {0.0001984126984126984, 1.7209558293420705e-22},
  {2.48015873015873e-05, 2.1511947866775882e-23}, {2.7557319223985893e-06, -1.858393274046472e-22},
  {2.755731922398589e-07, 2.3767714622250297e-23}, {2.505210838544172e-08, -1.448814070935912e-24},
  {2.08767569878681e-09, -1.20734505911326e-25}, {1.6059043836821613e-10, 1.2585294588752098e-26},
  {1.1470745597729725e-11, 2.0655512752830745e-28}, {7.647163731819816e-13, 7.03872877733453e-30},
  {4.779477332387385e-14, 4.399205485834081e-31}, {2.8114572543455206e-15, 1.6508842730861433e-31},
  {1.5619206968586225e-16, 1.1910679660273754e-32}, {8.22063524662433e-18, 2.2141894119604265e-34},
  {4.110317623312165e-19, 1.4412973378659527e-36}, {1.9572941063391263e-20, -1.3643503830087908e-36},
  {8.896791392450574e-22, -7.911402614872376e-38}, {3.868170170630684e-23, -8.843177655482344e-40},
  {1.6117375710961184e-24, -3.6846573564509766e-41}, {6.446950284384474e-26, -1.9330404233703465e-42},
  {2.4795962632247976e-27, -1.2953730964765229e-43}, {9.183689863795546e-29, 1.4303150396787322e-45},
  {3.279889237069838e-30, 1.5117542744029879e-46}, {1.1309962886447716e-31, 1.0498015412959506e-47},
  {3.7699876288159054e-33, 2.5870347832750324e-49}};

// Sine and cosine of 0 <= x < 7, correctly rounded but for ties that double-double arithmetic cannot tell: Pillow takes
// the C library's, and a last bit that differs would move the pixel at the centre of an image with odd sides.
__device__ void sine_cosine(double x, double* sine, double* cosine) {
  double k = rint(x * 0.6366197723675814);
  DD first = two_product(k, 1.5707963267948966), second = two_product(k, 6.123233995736766e-17);
  DD r = two_sum(x, -first.hi);
  r = add(r, {-first.lo, 0.0});
  r = add(r, {-second.hi, -second.lo});
  r = add(r, {k * 1.4973849048591698e-33, 0.0});
  DD square = multiply(r, r), s = INVERSE_FACTORIAL[29], c = INVERSE_FACTORIAL[30];
  for (int n = 27; n >= 1; n -= 2) {
    s = multiply(s, square);
    s = add(INVERSE_FACTORIAL[n], {-s.hi, -s.lo});
  }
  for (int n = 28; n >= 0; n -= 2) {
    c = multiply(c, square);
    c = add(INVERSE_FACTORIAL[n], {-c.hi, -c.lo});
  }
  s = multiply(s, r);
  int quadrant = (int)k & 3;
  double by_quadrant[4] = {s.hi, c.hi, -s.hi, -c.hi};
  *sine = by_quadrant[quadrant];
  *cosine = by_quadrant[(quadrant + 1) & 3];
}

// Python's round(x, 15) for |x| <= 1: the nearest whole number of 1e-15, from the exact product, over 1e15.
__device__ double round15(double x) {
  DD product = two_product(x, 1e15);
  double n = rint(product.hi), rest = (product.hi - n) + product.lo;
  if (rest > 0.5 || (rest == 0.5 && fmod(n, 2.0) != 0.0)) n += 1.0;
  if (rest < -0.5 || (rest == -0.5 && fmod(n, 2.0) != 0.0)) n -= 1.0;
  return n / 1e15;
}

__device__ double pixels_shifted(double fraction, int side) {
  double pixels = fraction * (double)side, whole = rint(pixels);
  return fabs(pixels - whole) <= 1e-9 ? whole : pixels;
}

__device__ bool is_affine(int op) { return op == ROTATE || op == ROTATE_90 || (op >= SHEAR_X && op <= TRANSLATE_Y); }

// Quarter turns of images that are not square go through the matrix, since their indices would leave the image.
__device__ int affine(int op, double arg, int height, int width, double* m) {
  m[0] = 1.0; m[1] = op == SHEAR_X ? arg : 0.0; m[2] = op == TRANSLATE_X ? pixels_shifted(arg, width) : 0.0;
  m[3] = op == SHEAR_Y ? arg : 0.0; m[4] = 1.0; m[5] = op == TRANSLATE_Y ? pixels_shifted(arg, height) : 0.0;
  if (op != ROTATE && op != ROTATE_90) return -1;
  double degrees = fmod(arg, 360.0);
  if (degrees < 0.0) degrees += 360.0;
  if (degrees == 0.0) return 0;
  if (degrees == 180.0) return 2;
  if (height == width && degrees == 90.0) return 1;
  if (height == width && degrees == 270.0) return 3;
  double sine, cosine;
  sine_cosine(degrees * 0.017453292519943295, &sine, &cosine);
  double a = round15(cosine), b = round15(-sine), d = round15(sine);
  double centre_x = width / 2.0, centre_y = height / 2.0;
  m[0] = a; m[1] = b; m[3] = d; m[4] = a;
  m[2] = ((a * -centre_x + b * -centre_y) + 0.0) + centre_x;
  m[5] = ((d * -centre_x + a * -centre_y) + 0.0) + centre_y;
  return -1;
}

// Pillow's 16.16 fixed point, with which it looks for the nearest neighbour.
__device__ i64 fixed_point(double value) { return (i64)floor(value * 65536.0 + 0.5); }
